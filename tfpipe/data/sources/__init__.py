"""Sources of the images' bytes: one class for each kind behind one protocol."""

__all__ = ["cache", "crop_cache", "files", "listed", "packed", "reading", "registry", "remote", "source", "space"]
