"""docs/compose.md: every block of Python in it runs."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from tests.support.commands import ROOT
from tests.support.documents import blocks
from tests.support.sample import SampleData
from tfpipe import build_dataset, load_config

TRANSFORM, LOOP, KERAS, CHAIN, RESUME = blocks(ROOT / "docs/compose.md", "python")


@pytest.fixture
def folder(sample: SampleData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where a user would be: next to a config.json."""
    sample.config(tmp_path / "config.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_map_of_the_code_names_every_package() -> None:
    """Each package of the tree, each folder of C, and no other folder."""
    _, code = (ROOT / "docs/compose.md").read_text().split("\n## The code\n")
    named = re.findall(r"\]\(\.\./(tfpipe[\w/]*)\)", code)
    sources = [*(ROOT / "tfpipe").rglob("__init__.py"), *(ROOT / "tfpipe").rglob("*.c")]
    assert sorted(named) == sorted({str(path.parent.relative_to(ROOT)) for path in sources})


def run(block: str) -> dict:
    """The names that a block defines, run from a file of its own, since AutoGraph reads the source."""
    path = Path(f"block_{len(list(Path().glob('block_*')))}.py").resolve()
    path.write_text(block)
    return runpy.run_path(str(path))


def test_a_function_in_the_config(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "tones", raising=False)
    name = TRANSFORM.splitlines()[0].removeprefix("# ")
    (folder / name).write_text(TRANSFORM)
    plain = next(iter(build_dataset(load_config("config.json"))))
    brighter = next(iter(build_dataset(load_config("config.json", ["data.transform=tones:brighten"]))))
    assert (brighter[0].dtype, brighter[0].shape) == (tf.uint8, plain[0].shape)
    assert tf.reduce_all(brighter[0] >= plain[0]) and tf.reduce_any(brighter[0] > plain[0] + 5)
    assert tf.reduce_all(brighter[1] == plain[1])


def test_a_loop_of_your_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = run(LOOP)["loader"].steps_per_epoch
    assert run(LOOP)["loader"].step == 2 * steps
    assert [line.split(" steps")[0] for line in capsys.readouterr().out.splitlines()] == [str(steps), str(2 * steps)]


def test_keras_fit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = run(KERAS)["loader"]
    crops = 2 * 16 * loader.steps_per_epoch
    assert capsys.readouterr().out.splitlines()[-1] == f"{crops} crops trained", "two epochs, and none taken ahead"


def test_the_chain_by_hand(folder: Path) -> None:
    names = run(CHAIN)
    images, labels = next(iter(names["dataset"]))
    assert names["images"].shape == (16, 32, 32, 3) and names["labels"].shape == (16, 8)
    assert tf.reduce_all(tf.abs(tf.reduce_sum(names["labels"], axis=1) - 1) < 1e-5)
    assert tf.reduce_any((names["labels"] > 0.01) & (names["labels"] < 0.99))
    assert tf.reduce_all(names["images"] == images) and tf.reduce_all(names["labels"] == labels)
    # Without the stages of its own, it is the package's chain.
    bare = re.sub(r"^dataset = dataset\.(filter|map)\(.*\n", "", CHAIN, flags=re.MULTILINE).split("images, labels =")[0]
    expected = build_dataset(load_config("config.json"), with_positions=True)
    for batch, want in zip(run(bare)["dataset"].take(8), expected, strict=False):
        assert all(tf.reduce_all(one == other) for one, other in zip(batch, want, strict=True))


def test_where_to_go_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run(RESUME)
    assert "an epoch of " in capsys.readouterr().out
    _, labels, positions = names["last"]
    assert (names["cursor"].position, names["cursor"].crop) == (positions[-1, 0], positions[-1, 1] + 1)
    whole = build_dataset(load_config("config.json"), with_positions=True).skip(names["steps"])
    for (images, labels), (want, want_labels, _) in zip(names["dataset"].take(3), whole, strict=False):
        assert tf.reduce_all(images == want) and tf.reduce_all(labels == want_labels)
