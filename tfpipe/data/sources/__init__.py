"""Sources of the images' bytes: one class for each kind behind one protocol."""
