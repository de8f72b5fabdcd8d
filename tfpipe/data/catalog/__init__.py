"""Everything that is known before the first image is opened: filelists, labels, layouts, the index, boxes."""

__all__ = ["box_tables", "boxes", "filelist", "index", "labels", "layout", "lists", "load", "locate", "paths", "types"]
