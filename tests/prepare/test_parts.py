"""What a tool stores is that of its inputs as they are, whatever was edited in place and whenever it was stopped."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.images import encoded, picture
from tests.support.routes import CLASSES, Sample
from tests.support.sources import write_config, write_source
from tfpipe import Config, World, load_config
from tfpipe.prepare import entries, index, pack, parts, stage

COUNT = 5
TIMES_NS = itertools.count(1_700_000_000_000_000_000)


def files(folder: Path) -> dict[str, bytes]:
    """Every file, also hidden ones; the manifest of a pack and its hidden record tables say the times of the images."""
    every = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in every}


def make_index(config: Config, out: Path) -> Any:
    data = config.data.model_copy(update={"index": out})
    return pq.read_table(index.build_index(data, "train", World(), processes=1).path).to_pydict()


def make_entries(config: Config, out: Path) -> Any:
    data = config.data.model_copy(update={"index": out})
    path = entries.build_entries(data, "train", World(), threads=1).path
    return [(path / name).read_bytes() for name in ("text.npy", "starts.npy")]


def make_pack(config: Config, out: Path) -> Any:
    pack.pack(config.data, "train", out, pack.PackPlan("original", shards=3), World())
    return files(out)


def make_stage(config: Config, out: Path) -> Any:
    stage.stage(config.data, ["train"], out, World())
    return files(out)


# The tool, what ends it, and what of the data may change under it: a pack of other boxes is another pack.
TOOLS: dict[str, tuple[Callable[[Config, Path], Any], Any, str, str, tuple[str, ...]]] = {
    "index": (make_index, index.IndexParts, "merge", "filelist", ("image", "xml", "part")),
    "entries": (make_entries, entries.EntriesParts, "merge", "filelist", ("image", "xml", "part")),
    "entries of shards": (make_entries, entries.EntriesParts, "merge", "tar", ("shard", "part")),
    "pack": (make_pack, pack.Work, "finish", "filelist", ("image", "part")),
    "stage": (make_stage, stage, "_write_lists", "filelist", ("image", "xml")),
}


def edit(what: str, number: int, longer: bool, root: Path) -> None:
    """Changes a file in place: to another time and content, and to another size too if that is asked for."""
    pattern = {
        "image": "data/**/*.jpg",
        "xml": "data/**/*.xml",
        "shard": "data/train/*",
        "part": "out/**/*.parts/*[!n]",
    }
    chosen = sorted(root.glob(pattern[what]))
    if not chosen:  # no part is made yet
        return
    path = chosen[number % len(chosen)]
    contents = path.read_bytes()
    if what == "part":
        path.write_bytes(contents[: len(contents) // 2])
        return
    if what == "xml":
        changed = contents.replace(b">90<", b">80<") if b">90<" in contents else contents.replace(b">80<", b">90<")
        path.write_bytes(changed + b"\n" * longer)
    elif what == "image":
        path.write_bytes(contents[:-1] + bytes([contents[-1] ^ 1]) + b"." * longer)
    else:
        start = contents.index(b"\xff\xda") + 100
        path.write_bytes(contents[:start] + bytes([contents[start] ^ 1]) + contents[start + 1 :])
    time_ns = next(TIMES_NS)
    os.utime(path, ns=(time_ns, time_ns))


EDITS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.booleans()), max_size=2)


@pytest.mark.parametrize("tool", TOOLS)
def test_what_is_made_again_is_what_would_be_made_anew(
    tool: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, owner, last, source, edited = TOOLS[tool]
    monkeypatch.setattr(parts, "PART", 2)
    pictures = [encoded(picture(64, 96, number)) + b"tail" for number in range(COUNT)]
    samples = [Sample(CLASSES[n % 2], f"{n:03}", file, [[8, 8, 90, 90]]) for n, file in enumerate(pictures)]

    @settings(max_examples=3 if tool == "pack" else 15)
    @given(st.lists(EDITS, min_size=1, max_size=2), st.booleans())
    @example([[(0, 0, False), (1, 1, False)]], True)
    def check(interruptions: list[list[tuple[int, int, bool]]], ends: bool) -> None:
        root = tmp_path_factory.mktemp("root")
        config = load_config(write_config(root / "config.json", write_source(source, root / "data", samples)))
        for edits in interruptions:
            with pytest.MonkeyPatch.context() as broken, pytest.raises(KeyboardInterrupt):
                broken.setattr(owner, last, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
                make(config, root / "out")
            for kind, number, longer in edits:
                edit(edited[kind % len(edited)], number, longer, root)
        assert make(config, root / "out") == make(config, root / "anew")
        if ends and tool != "pack":  # which refuses to be made again of other images
            edit(edited[0], 0, False, root)
            assert make(config, root / "out") == make(config, root / "once more")

    check()
