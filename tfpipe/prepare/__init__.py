"""Work done ahead of training: the index, packed data, copies on local disks."""

__all__ = ["copier", "index", "index_rows", "pack", "pack_plan", "pack_work", "pictures", "shard_files", "stage"]
