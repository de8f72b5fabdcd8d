"""From an XML's text to boxes: by lxml, and in graph."""
