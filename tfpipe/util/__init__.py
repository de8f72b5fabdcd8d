"""Small helpers that know nothing of images: atomic writes, locks, process pools, progress, the console."""

__all__ = [
    "atomic_write",
    "buffer_pool",
    "console",
    "files",
    "import_function",
    "json_text",
    "locks",
    "memory",
    "pools",
    "progress",
    "sampling",
    "schedstat",
]
