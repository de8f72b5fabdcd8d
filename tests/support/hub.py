"""A stand-in of the Hugging Face Hub for data sets: what huggingface_hub's file system asks it for."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit


@contextmanager
def hub(root: Path, repository: str) -> Iterator[str]:
    """Serves a folder as the data set `repository`, "owner/name", at the revision main; yields the address."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            api, resolve = f"/api/datasets/{repository}", f"/datasets/{repository}/resolve/main/"
            if path in (api, f"{api}/revision/main"):
                self.answer(json.dumps({"id": repository, "sha": "0" * 40, "siblings": []}).encode())
            elif path.startswith(f"{api}/tree/main"):
                folder = path.removeprefix(f"{api}/tree/main").strip("/")
                self.answer(json.dumps([entry(file) for file in sorted((root / folder).iterdir())]).encode())
            elif path.startswith(resolve) and (file := root / path.removeprefix(resolve)).is_file():
                part = self.headers.get("Range", "").removeprefix("bytes=")
                start, _, end = part.partition("-")
                with file.open("rb") as opened:
                    opened.seek(int(start or 0))
                    self.answer(opened.read(int(end) + 1 - int(start) if end else -1), 206 if part else 200)
            else:
                self.answer(b"{}", 404)

        def answer(self, body: bytes, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    oids: dict[tuple[Path, int, int], str] = {}

    def entry(file: Path) -> dict[str, object]:
        if file.is_dir():
            return {"type": "directory", "path": str(file.relative_to(root)), "oid": "0" * 40}
        status = file.stat()
        version = (file, status.st_size, status.st_mtime_ns)
        if version not in oids:
            oids[version] = hashlib.sha1(file.read_bytes()).hexdigest()
        return {"type": "file", "path": str(file.relative_to(root)), "size": status.st_size, "oid": oids[version]}

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
