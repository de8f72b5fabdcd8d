"""From an XML's text to boxes: by lxml, and in graph."""

__all__ = ["cleaning", "graph", "objects", "targets", "voc"]
