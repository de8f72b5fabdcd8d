"""Labels of batches as `data.targets` sets them: looked up, and moved with their crops."""
