"""Small helpers that know nothing of images: atomic writes, locks, process pools, progress, the console."""

__all__ = [
    "atomic_write",
    "buffer_pool",
    "console",
    "differences",
    "files",
    "import_function",
    "locks",
    "memory",
    "pools",
    "progress",
    "sampling",
    "schedstat",
]
