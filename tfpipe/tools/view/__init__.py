"""Pictures of what training sees: batches, boxes, epochs."""
