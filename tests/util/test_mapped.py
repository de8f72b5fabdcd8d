"""Arrays in files: the same when they are mapped; whole, or not there."""

import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from tfpipe.util.mapped import ABOUT, Part, map_part, write_part

PART = Part(
    {"folders": ["/a/", "/ö/", "\udcff"], "ends": [3]},
    {
        "names": np.arange(5000, dtype=np.uint8),
        "boxes": np.zeros((0, 4), np.float32),
        "annotated": np.array([True, False, True]),
        "starts": np.arange(7)[::2],
    },
)


def test_a_part_is_the_same_when_it_is_mapped(tmp_path: Path) -> None:
    write_part(tmp_path / "part", PART)
    mapped = map_part(tmp_path / "part")
    assert mapped.about == PART.about and mapped.arrays.keys() == PART.arrays.keys()
    for name, array in PART.arrays.items():
        found = mapped.arrays[name]
        assert found.dtype == array.dtype and np.array_equal(found, array)
        assert not found.flags.writeable
        assert found.ctypes.data % 64 == 0, "TensorFlow would copy it"
    assert [path.name for path in tmp_path.iterdir()] == ["part"]


def test_one_part_replaces_another(tmp_path: Path) -> None:
    for number in range(2):
        write_part(tmp_path / "part", Part({"number": number}, {f"array{number}": np.arange(number)}))
    mapped = map_part(tmp_path / "part")
    assert mapped.about == {"number": 1} and list(mapped.arrays) == ["array1"]
    assert sorted(path.name for path in (tmp_path / "part").iterdir()) == [ABOUT, "array1.npy"]


@pytest.mark.parametrize("cut", [0, 10, 127, 200, 4000])
@pytest.mark.parametrize("name", ["names.npy", ABOUT])
def test_a_part_that_is_cut_off_is_none(tmp_path: Path, name: str, cut: int) -> None:
    write_part(tmp_path / "part", PART)
    file = tmp_path / "part" / name
    file.write_bytes(file.read_bytes()[: min(cut, file.stat().st_size - 1)])
    assert map_part(tmp_path / "part") is None


def test_a_part_without_one_of_its_files_is_none(tmp_path: Path) -> None:
    assert map_part(tmp_path / "part") is None
    write_part(tmp_path / "part", PART)
    (tmp_path / "part" / "starts.npy").unlink()
    assert map_part(tmp_path / "part") is None


def test_a_part_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_part(tmp_path / "part", PART)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6 - PART.nbytes, PART.nbytes))
    with pytest.raises(OSError, match=r"0 MB are needed, 0 MB are free"):
        write_part(tmp_path / "part", PART)
    monkeypatch.undo()
    monkeypatch.setattr(np, "save", lambda *_args, **_keys: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_part(tmp_path / "part", PART)
    assert [path.name for path in tmp_path.iterdir()] == ["part"] and map_part(tmp_path / "part") is not None
