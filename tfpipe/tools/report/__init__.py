"""From a trace of a run to a verdict."""
