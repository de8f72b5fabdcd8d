"""The tools on two ranks of one mpirun, which runs them in turn: they leave what one rank leaves."""

import json
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import flawed, scenarios
from tests.support.commands import ROOT, WARM, run_ranks
from tests.support.oddities import write_tree
from tests.support.packs import config_of, packed
from tests.support.sample import SampleData
from tests.support.scenarios import Result, Scenario
from tfpipe import load_config
from tfpipe.cli import main
from tfpipe.data.catalog.filelist import read_filelist
from tfpipe.distributed import World
from tfpipe.prepare.index import build_index


class Ran(NamedTuple):
    """The folder of a run of all scenarios, and its exit code."""

    folder: Path
    code: int

    def said(self, name: str, code: int = 0) -> list[Result]:
        """The output of each rank of a scenario, after a check of their exit codes."""
        both = [scenarios.read(self.folder, name, rank) for rank in range(2)]
        assert {said.code for said in both} == {code}, both
        return both


@pytest.fixture(scope="module")
def ran(sample: SampleData, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("ranks")
    config = str(sample.config(folder / "c.json", data={"index": "indexes"}))
    odd, bad = folder / "odd", folder / "bad"
    write_tree(odd)
    flawed.write_tree(bad)
    (bad / "Annotations" / flawed.OWN / "fine.xml").write_text("<annotation>")
    pack = ["pack", "-c", config, "--out", str(folder / "packed"), "--kind", "crops", "--shards", "5", "--split", "all"]
    copy = ["stage", "-c", config, "--out"]
    bench = ["bench", "-c", config, "--seconds", "0.2", "--repeats", "2", "--json", str(folder / "bench.json")]
    check = ["check", "-c", str(odd / "c.json"), "--split", "all", "--json", str(folder / "check.json")]
    index = ["index", "-c", config, "--split", "all", "--processes", "2"]
    commands = [
        # First, since it sets TensorFlow's threads.
        Scenario("bench", bench),
        # While there is no index: the ranks share the XMLs.
        Scenario("pack", pack),
        Scenario("stage-shard", [*copy, str(folder / "shard"), "--set", "data.scope=shard"]),
        Scenario("stage-global", [*copy, str(folder / "global")]),
        Scenario("check", [*check, "--processes", "1"], {"tfpipe.tools.check.split.IMAGES_PER_TASK": 3}),
        Scenario("index", index, {"tfpipe.prepare.parts.PART": 20, "tfpipe.prepare.index.CHUNK": 6}),
        Scenario("index-stopped", ["index", "-c", str(bad / "c.json"), "--processes", "1"]),
    ]
    path = scenarios.write(folder, commands)
    return Ran(folder, run_ranks(2, *WARM, ROOT / "tests/support/scenarios.py", path).code)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_two_ranks_pack_what_one_does(sample: SampleData, ran: Ran, tmp_path: Path) -> None:
    first, second = ran.said("pack")
    assert first.out.splitlines()[-1].startswith(f"{ran.folder}/packed/validation.json: 37 images, ")
    assert second.out == ""
    index = str(ran.folder / "indexes")
    alone = packed(config_of(sample, tmp_path, index=index), tmp_path / "packed", "crops", shards=5)
    assert contents(ran.folder / "packed") == contents(alone)


@pytest.mark.parametrize("scope", ["shard", "global"])
def test_the_ranks_of_a_node_copy_their_shares(ran: Ran, scope: str) -> None:
    first, second = ran.said(f"stage-{scope}")
    copies = read_filelist(ran.folder / scope / "train.txt")
    assert len(copies) == 96 and all(map(os.path.exists, copies))
    assert first.out.count(f"--set data.train_filelist={ran.folder}/{scope}/train.txt") == 1
    assert second.out == ""


def test_launched_ranks_measure_together(ran: Ran) -> None:
    first, second = ran.said("bench")
    read = json.loads((ran.folder / "bench.json").read_text())
    assert first.out.splitlines()[-1] == f"images_per_second: {read['images_per_second']:.1f}"
    assert first.out.count("images_per_second") == 1 and "each of them" in first.out
    assert second.out == ""
    assert [len(turn) for turn in read["turns"]] == [2, 2]
    assert len(read["alone"]) == 2 and read["ratio_to_one_rank"] > 0


def test_two_ranks_find_what_one_does(ran: Ran) -> None:
    alone = ran.folder / "alone.json"
    config = str(ran.folder / "odd/c.json")
    assert main(["check", "-c", config, "--split", "all", "--json", str(alone), "--processes", "1"]) == 1
    first, second = (scenarios.read(ran.folder, "check", rank) for rank in range(2))
    assert first.code == 1 and "would stop training" in first.err
    assert (second.code, second.out) == (0, "")
    assert json.loads((ran.folder / "check.json").read_text()) == json.loads(alone.read_text())


def test_two_ranks_write_the_same_bytes_as_one(sample: SampleData, ran: Ran, tmp_path: Path) -> None:
    first, second = ran.said("index")
    assert first.out.count("96 images") == 1 and second.out == ""
    config = load_config(sample.config(tmp_path / "c.json", data={"index": "indexes"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tfpipe.prepare.parts.PART", 20)
        patch.setattr("tfpipe.prepare.index.CHUNK", 6)
        for split in ("train", "test"):
            build_index(config.data, split, World(), processes=1)
    assert contents(ran.folder / "indexes") == contents(tmp_path / "indexes")
    assert len(contents(tmp_path / "indexes")) == 2


def test_what_one_rank_cannot_read_stops_all_by_name(ran: Ran) -> None:
    assert all("fine.xml" in said.err for said in ran.said("index-stopped", code=2))
    assert ran.code == 2, "mpirun passes it on"


BAD_ON_RANK_1 = """
import os, sys
from tfpipe.cli import main
from tfpipe.prepare import stage
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    def fail(*_, **__):
        raise {error}
    stage.{function} = fail
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("function", "error", "said", "code"),
    [
        # Before any collective: rank 0 waits in one, without end.
        ("_plan", "OSError(5, 'no disk', '/a.txt')", "tfpipe: error: rank 1: [Errno 5] no disk: '/a.txt'", 1),
        ("_plan", "ZeroDivisionError('a bug')", "ZeroDivisionError: a bug", 1),
        ("_plan", "__import__('tfpipe').ConfigError('no room')", "tfpipe: error: rank 1: no room", 2),
        # In World.on_all.
        ("_copy", "__import__('tfpipe').ConfigError('no room')", "tfpipe: error: rank 1: no room", 2),
        ("_copy", "ZeroDivisionError('a bug')", "ZeroDivisionError: a bug", 1),
        ("_copy", "KeyboardInterrupt", "tfpipe: error: rank 1: interrupted", 130),
        ("_copy", "OSError(os.kill(os.getpid(), 15))", "signal 15", 143),
    ],
    ids=["error", "bug", "mistake", "mistake on_all", "bug on_all", "interrupt on_all", "SIGTERM on_all"],
)
def test_a_rank_that_fails_alone_ends_the_others(
    sample: SampleData, tmp_path: Path, function: str, error: str, said: str, code: int
) -> None:
    config = sample.config(tmp_path / "c.json")
    program = BAD_ON_RANK_1.format(function=function, error=error)
    ended = run_ranks(2, *WARM, "-c", program, "stage", "-c", config, "--out", tmp_path / "copy")
    assert (said in ended.err, ended.code) == (True, code), ended.err


def test_one_bad_image_ends_all_ranks_of_a_bench(sample: SampleData, tree: Path, tmp_path: Path) -> None:
    config = sample.config(tmp_path / "c.json", data={"train_filelist": "train.txt", "test_filelist": None})
    image = sorted((tree / "Data").rglob("*.JPEG"))[5]
    image.write_bytes(image.read_bytes()[:300])
    ended = run_ranks(2, *WARM, "-m", "tfpipe", "bench", "-c", config, "--seconds", "2", "--repeats", "2")
    assert ended.code == 1 and f"cannot use {image}" in ended.err, ended.err
