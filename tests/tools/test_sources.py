"""Each command on each source runs, or is refused with the message that the table of docs/sources.md says."""

from pathlib import Path

import pytest

from tests.support.commands import ROOT
from tests.support.packs import recorded_pack
from tests.support.sources import write_config
from tests.support.tool_cases import TOOLS, WRITERS, run, write
from tests.support.tool_matrix import PACKED, SOURCES, STORED, markdown, refusal
from tfpipe import World, load_config
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError
from tfpipe.tools.bench.machine import limit
from tfpipe.tools.trained.predict import chosen_top

# Commands that build pipelines before they see that they cannot serve a source.
LATE = {"bench --stages", "view --boxes"}


def config_of(source: str, root: Path) -> Path:
    """Writes the data of a source and its config; packs are recorded ones."""
    if source not in (*PACKED, *STORED):
        return write(source, root)
    data = {"crop_image_size": [16, 16], "batch_size": 2}
    path = recorded_pack(root / "packed", source)
    return write_config(root / "c.json", {**data, "source": {"kind": "packed", "path": str(path)}})


def test_the_table_has_each_source_and_the_page_has_the_table() -> None:
    assert SOURCES.keys() == WRITERS.keys()
    assert markdown() in (ROOT / "docs/sources.md").read_text(), "put tests.support.tool_matrix.markdown() there"


@pytest.mark.parametrize("source", SOURCES)
def test_a_command_that_cannot_serve_a_source_says_why(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of(source, tmp_path)
    for tool in TOOLS.keys() - LATE:
        if row := refusal(tool, source):
            assert run(tool, config) == 2, tool
            message = capsys.readouterr().err
            assert row.says in message and "Traceback" not in message, (tool, message)


@pytest.mark.full("each needs whole pipelines; make test has the refusals, and the reading of coefficients below")
@pytest.mark.parametrize("source", SOURCES)
def test_every_other_command_runs(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write(source, tmp_path)
    for tool in TOOLS:
        row = refusal(tool, source)
        code = run(tool, config)
        message = capsys.readouterr().err
        assert code == (2 if row else 0) and "Traceback" not in message, (tool, code, message)
        assert row is None or row.says in message, (tool, message)


@pytest.mark.parametrize("source", [*PACKED, *STORED])
def test_bench_reads_what_is_packed(source: str, tmp_path: Path) -> None:
    """The files of images, whatever their form in the shards."""
    split = load_split(load_config(config_of(source, tmp_path)).data, "train", World())
    _, found = limit(split)
    assert (found.images, found.skipped) == (len(split.shards.records.image), 0)


def test_without_top_all_classes_are_written_if_they_are_few(tmp_path: Path) -> None:
    assert [chosen_top(None, outputs, tmp_path) for outputs in (2, 5, 9)] == [2, 5, 5]
    with pytest.raises(ConfigError, match=r"--top 3: .* has 2 outputs; accepted: 1 to 2"):
        chosen_top(3, 2, tmp_path)
