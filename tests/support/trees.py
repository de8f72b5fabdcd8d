"""Trees of files."""

from collections.abc import Mapping
from pathlib import Path


def write_below(root: Path, files: Mapping[str, bytes]) -> Path:
    """Writes files by their names below a folder, with the folders that they are in; returns the folder."""
    for name, contents in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents)
    return root


def touch(root: Path, *names: str) -> Path:
    """Writes empty ones."""
    return write_below(root, dict.fromkeys(names, b""))
