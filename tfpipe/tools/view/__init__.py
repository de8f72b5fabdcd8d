"""Pictures of what training sees: batches, boxes, files that fail."""
