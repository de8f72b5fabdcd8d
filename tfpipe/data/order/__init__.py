"""The order of the samples: which one comes when, on which rank, and after an interruption. Pure index arithmetic."""
