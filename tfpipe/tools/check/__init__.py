"""Whether training can use the images of a split: what is odd, and what would stop it."""
