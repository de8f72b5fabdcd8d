"""Files that appear whole or not at all."""

import os
from pathlib import Path

import pytest

from tfpipe.util.atomic_write import atomic_write


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    with atomic_write(path) as partial:
        partial.write_bytes(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"
    with pytest.raises(OSError, match="disk"), atomic_write(path) as partial:
        partial.write_bytes(b"half")
        raise OSError("the disk is full")
    assert path.read_bytes() == b"whole" and os.listdir(tmp_path) == ["a.bin"]
