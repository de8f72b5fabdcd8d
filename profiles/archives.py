"""Measures how many members of an archive are scanned in a second of CPU time, all in the page cache.

    python profiles/archives.py [--members 300000] [--folder /tmp]

The archives hold members of a few bytes, as a scan reads headers alone: a tar file of 1,000 class tars, and a zip
file.
"""

import argparse
import io
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

from tfpipe.data.sources.packed.archive import scan_archive
from tfpipe.util.ledger import Ledger

CLASSES = 1000


def add(tar: tarfile.TarFile, name: str, contents: bytes) -> None:
    """Adds a member to a tar file."""
    member = tarfile.TarInfo(name)
    member.size = len(contents)
    tar.addfile(member, io.BytesIO(contents))


def write_tar(path: Path, members: int) -> None:
    """Writes a tar file of class tars."""
    with tarfile.open(path, "w") as outer:
        for number in range(CLASSES):
            buffer, name = io.BytesIO(), f"n{number:08}"
            with tarfile.open(fileobj=buffer, mode="w") as inner:
                for image in range(members // CLASSES):
                    add(inner, f"{name}_{image}.JPEG", b"\xff\xd8\xff")
            add(outer, f"{name}.tar", buffer.getvalue())


def write_zip(path: Path, members: int) -> None:
    """Writes a zip file of class folders."""
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(members):
            archive.writestr(f"train/n{number % CLASSES:08}/{number}.JPEG", b"\xff\xd8\xff")


def main() -> None:
    """Writes the archives, scans each three times, and prints the best rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=300_000)
    parser.add_argument("--folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for name, write in (("train.tar", write_tar), ("train.zip", write_zip)):
            path = Path(folder) / name
            write(path, args.members)
            seconds = []
            for _ in range(3):
                start = time.process_time()
                rows = scan_archive(path, path.stat().st_size, Ledger())
                seconds.append(time.process_time() - start)
            print(f"{name}: {len(rows.names) / min(seconds):,.0f} members a second of CPU time")


if __name__ == "__main__":
    main()
