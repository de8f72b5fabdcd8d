"""From a rank's pipeline to its user: batches one after the other, in time, in epochs and passes."""
