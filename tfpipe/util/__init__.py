"""Small helpers that know nothing of images: atomic writes, locks, process pools, progress, the console."""
