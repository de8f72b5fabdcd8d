"""Where the bytes of the images are, one class for each kind behind one protocol."""

__all__ = ["cache", "crop_cache", "files", "listed", "packed", "reading", "registry", "remote", "source", "space"]
