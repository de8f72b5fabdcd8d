"""One HTML page for what a tool finds: its template and its figures."""
