"""A stand-in of nginx for profiles/remote.py: python nginx.py -c CONFIG serves files, as a bucket and ranges too."""

import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CONFIG = Path(sys.argv[2]).read_text()
(PORT,) = re.findall(r"listen 127\.0\.0\.1:(\d+);", CONFIG)
(ROOT,) = re.findall(r"root (\S+);", CONFIG)


class Files(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections

    def do_GET(self) -> None:
        """Answers with a file, or with a range of it."""
        body, asked = Path(ROOT, self.path.rpartition("/")[2]).read_bytes(), self.headers.get("Range")
        self.send_response(206 if asked else 200)
        if asked:
            begin, end = map(int, asked.removeprefix("bytes=").split("-"))
            self.send_header("Content-Range", f"bytes {begin}-{end}/{len(body)}")
            body = body[begin : end + 1]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing, as nginx does."""


ThreadingHTTPServer(("127.0.0.1", int(PORT)), Files).serve_forever()
