"""Small files, whole, whatever their size compared with that of a read."""

from pathlib import Path

import pytest

from tfpipe.util.files import READ_BYTES, format_of, read_whole


@pytest.mark.parametrize("size", [0, 1, READ_BYTES - 1, READ_BYTES, READ_BYTES + 1, 2 * READ_BYTES, 3 * READ_BYTES + 5])
def test_a_file_is_read_whole(tmp_path: Path, size: int) -> None:
    contents = bytes(number % 251 for number in range(size))
    (tmp_path / "file").write_bytes(contents)
    assert read_whole(str(tmp_path / "file")) == contents
    assert read_whole(str(tmp_path / "file"), most=READ_BYTES) == contents[:READ_BYTES]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    for read in (read_whole, lambda path: read_whole(path, most=1)):
        with pytest.raises(FileNotFoundError, match="gone"):
            read(str(tmp_path / "gone"))
        with pytest.raises(IsADirectoryError, match=str(tmp_path)):
            read(str(tmp_path))


@pytest.mark.parametrize(
    ("start", "kind"),
    [(b"BZh91", "compressed by bzip2: unpack it first"), (b"a BZh", None), (b"PAR1", "a Parquet file")],
)
def test_a_format_is_told_by_the_first_bytes(tmp_path: Path, start: bytes, kind: str | None) -> None:
    (tmp_path / "file").write_bytes(start)
    assert format_of(tmp_path / "file") == kind
