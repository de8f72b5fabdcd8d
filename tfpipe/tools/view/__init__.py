"""Pictures of what training sees: batches, boxes, files that fail."""

__all__ = ["broken", "panel", "sheet", "view"]
