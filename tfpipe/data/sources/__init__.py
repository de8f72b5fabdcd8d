"""Where the bytes of the images are, one class for each kind behind one protocol."""
