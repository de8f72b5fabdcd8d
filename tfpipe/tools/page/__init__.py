"""The HTML page of a tool: its template and its figures."""
