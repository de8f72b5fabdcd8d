"""From an XML's text to boxes: read by lxml, cleaned by numpy, handed to the graph."""
