"""The documents: links lead somewhere, commands and configs are such as are known, and what is generated is fresh."""

import argparse
import json
import re
import runpy
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docs.hooks.keys import anchor, markdown, shared_keys
from docs.hooks.tables import on_page_content
from tests.support import source_matrix, tool_matrix
from tests.support.commands import ROOT
from tests.support.documents import COLUMNS, FENCE, blocks, lines
from tests.support.runs import read_lines
from tests.support.sample import SampleData
from tfpipe.cli import program
from tfpipe.config import Config, load_config
from tfpipe.config.augment import STEPS
from tfpipe.config.messages import known_paths
from tfpipe.config.targets import KINDS
from tfpipe.data.catalog.index import ODD, SCHEMA
from tfpipe.data.sources import registry
from tfpipe.errors import ConfigError

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "jobs/README.md",
    *sorted((ROOT / "profiles").glob("*.md")),
]
PROGRAM = re.compile(r"(?:^|[\s/])(tfpipe|train\.py)(?=\s|$)")
# What a key of `data` cannot be without, which the text around it says.
WITH = {"label_source": {"classes": ["cat", "dog"]}}
PROFILE = re.compile(r"python\S* (profiles/\S+\.py.*)")

STYLE, SITE = ((ROOT / path).read_text() for path in ("docs/assets/site.css", "mkdocs.yml"))

by_name = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def prose(path: Path) -> str:
    """A document without its blocks of code."""
    return FENCE.sub("", path.read_text())


def anchors(path: Path) -> set[str]:
    return {anchor(heading.replace("`", "")) for heading in re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)}


def inline(path: Path) -> Iterator[str]:
    """A document's inline code, which may be broken over two lines."""
    for code in re.findall(r"`([^`]+)`", prose(path)):
        yield " ".join(code.split())


def commands(path: Path) -> Iterator[list[str]]:
    """The words of each tfpipe or train.py command in a document's shell blocks and inline code."""
    codes = [code for code in inline(path) if re.match(r"(mpirun .*|python )?(\S*/)?(tfpipe|train\.py)\b", code)]
    for line in [*lines(path), *codes]:
        found = PROGRAM.search(line)
        # Not what pip installs.
        if found is None or "pip install" in line:
            continue
        words = shlex.split(line[found.start(1) :].replace("'", ""), comments=True)
        end = next((at for at, word in enumerate(words) if word in ("|", "||", "&&", ";", ">", "&")), len(words))
        program, *rest = words[:end]
        yield ["train", *rest] if program == "train.py" else rest


def options() -> dict[str, set[str]]:
    """Each subcommand's options."""
    (subcommands,) = (each for each in program._parser()._actions if isinstance(each, argparse._SubParsersAction))
    return {name: set(parser._option_string_actions) for name, parser in subcommands.choices.items()}


def mistakes(words: list[str]) -> Iterator[str]:
    """Yields what the parser would not know in a command; nothing in a mere mention of tfpipe."""
    known = options()
    if not words:
        return
    if words[0] not in known:
        yield f"no such subcommand: {words[0]}"
        return
    for word in words[1:]:
        name = word.partition("=")[0]
        if name.startswith("-") and not name.lstrip("-")[:1].isdigit() and name not in known[words[0]]:
            yield f"{words[0]} has no {name}"


@by_name
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^()\s]+)\)", prose(path)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, fragment = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        assert linked.exists(), f"{path.name}: {target}"
        assert linked.is_relative_to(ROOT), f"{path.name}: {target} is outside the repository"
        if fragment and linked.suffix == ".md":
            assert fragment in anchors(linked), f"{path.name}: {target}: there are {sorted(anchors(linked))}"


@by_name
def test_no_block_of_code_has_too_many_columns(path: Path) -> None:
    shown = [line for _, _, block in FENCE.findall(path.read_text()) for line in block.splitlines()]
    assert [line for line in shown if len(line) > COLUMNS] == []


def test_what_makes_room_for_the_columns_of_code_is_set() -> None:
    """tests/docs/test_site.py looks at pages, where there is Chromium."""
    assert "toc.integrate" in SITE and "pre > code { font-size: 0.66rem; }" in STYLE


def test_each_word_of_code_in_a_table_stays_in_one_piece() -> None:
    page = "<p><code>a-b c</code></p><table><tr><td><code>tfpipe --x-y</code></td></tr></table>"
    words = "<span>tfpipe</span> <span>--x-y</span>"
    assert on_page_content(page) == page.replace("tfpipe --x-y", words)
    assert ":is(td, th) code span { white-space: nowrap; }" in STYLE
    assert "docs/hooks/tables.py" in SITE


@by_name
def test_commands_are_known_to_the_parser(path: Path) -> None:
    assert [(" ".join(words), mistake) for words in commands(path) for mistake in mistakes(words)] == []


@by_name
def test_set_names_keys_that_there_are(path: Path) -> None:
    known = known_paths(Config)
    for key in re.findall(r"--set ([a-z_]+\.[a-z_.]+)=", path.read_text()):
        # Below args stands what Keras takes.
        assert key.partition(".args.")[0] in known, f"{path.name}: --set {key}"


class Parsed(Exception):
    """Raised once the command line is read; the measuring need not begin."""


def test_no_script_that_measures_hides_a_module_of_python() -> None:
    """Python looks for modules in a script's folder first: a profiles/copy.py would break NumPy's import."""
    folders = {path.parent for path in (ROOT / "profiles").rglob("*.py")}
    assert not {path.stem for folder in folders for path in folder.glob("*.py")} & sys.stdlib_module_names


@pytest.mark.parametrize(
    "command",
    sorted(
        {
            found[1].partition(" #")[0].strip()
            for path in DOCUMENTS
            for code in (*lines(path), *inline(path))
            if (found := PROFILE.search(code))
        }
    ),
)
def test_profiles_know_their_options(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command that measures, up to where its script has read the command line."""
    script, *words = shlex.split(command)
    parse = argparse.ArgumentParser.parse_args

    def parsed(parser: argparse.ArgumentParser) -> None:
        parse(parser)
        raise Parsed

    folder = (ROOT / script).parent
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    monkeypatch.setattr(sys, "argv", [script, *words])
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")  # which one sets for good
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    known = set(sys.modules)
    try:
        with pytest.raises(Parsed):
            runpy.run_path(str(ROOT / script), run_name="__main__")
    finally:
        # Two folders there have modules of the same name.
        for name in set(sys.modules) - known:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(ROOT / "profiles")):
                del sys.modules[name]


def problem(fragment: dict, path: Path) -> str | None:
    """Returns what is wrong with a part of a config, in one that has no more than it must."""
    data = {} if "source" in fragment.get("data", {}) else {"train_filelist": "train.txt"}
    path.write_text(json.dumps({**fragment, "data": {**data, **fragment.get("data", {})}}))
    try:
        load_config(path)
    except ConfigError as error:
        return str(error)
    return None


@by_name
def test_blocks_of_json_are_configs(path: Path, tmp_path: Path) -> None:
    for block in blocks(path, "json"):
        fragment = json.loads(block if block.startswith("{") else "{" + block + "}")
        assert problem(fragment, tmp_path / "c.json") is None, block


@by_name
def test_inline_json_is_of_configs(path: Path, tmp_path: Path) -> None:
    """`"key": value` belongs to one section at least, `data` in most cases."""
    for code in inline(path):
        if not re.match(r'"\w+": ', code):
            continue
        ((key, value),) = json.loads("{" + code.replace(", ...", "") + "}").items()  # more of the same
        sections = [known.rpartition(".")[0] for known in known_paths(Config) if known.rpartition(".")[2] == key]
        fragments = [
            reduce(lambda inner, name: {name: inner}, each.split(".")[::-1], {key: value, **WITH.get(key, {})})
            for each in sections
        ]
        found = [problem(fragment, tmp_path / "c.json") for fragment in fragments]
        assert None in found, f"{code}: {found}"


@by_name
def test_tests_that_are_named_exist(path: Path) -> None:
    """Those of PYTEST_ARGS='-k WORD'."""
    sources = (file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    tests = [test for source in sources for test in re.findall(r"^def (test_\w+)", source, re.MULTILINE)]
    for word in re.findall(r"PYTEST_ARGS='[^']*-k (\w+)'", path.read_text()):
        assert any(word in test for test in tests), f"-k {word}"


def test_mistakes_are_found(tmp_path: Path) -> None:
    path = tmp_path / "spoilt.md"
    path.write_text(
        "`tfpipe bench --satges` and\n\n```bash\n"
        "mpirun -n 2 .venv/bin/tfpipe idnex -c c.json\n"
        "python train.py -c c.json \\\n    --reusme   # --not-this\n"
        "tfpipe view -c c.json -o a.png --first -1 | head -3\n```\n\n```python\ntfpipe nothing\n```\n"
    )
    found = [mistake for words in commands(path) for mistake in mistakes(words)]
    assert sorted(found) == ["bench has no --satges", "no such subcommand: idnex", "train has no --reusme"]


def test_what_one_more_touches_is_there() -> None:
    cells = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/one-more.md").read_text(), re.MULTILINE)
    paths = [path for cell in cells for path in re.findall(r"`(.*?)`", cell) if "NAME" not in path]
    assert len(paths) > 20 and [path for path in paths if not (ROOT / path).is_file()] == []


def test_one_more_of_each_is_missed_where_it_is_not() -> None:
    """As docs/one-more.md says, of what no other test misses."""
    picture, draws = (
        (ROOT / path).read_text() for path in ("profiles/augment_picture.py", "tests/data/images/test_augment.py")
    )
    assert [step.__name__ for step in STEPS if f'    "{step.__name__}": {{' not in picture] == []
    assert [step.__name__ for step in STEPS if not step.operation and f'"{step.__name__}"' not in draws] == []
    assert [kind for kind in KINDS if f'| `"{kind}"` |' not in (ROOT / "docs/targets.md").read_text()] == []
    names = {**source_matrix.KINDS, "original": "packed"}
    assert {names.get(source, source) for source in tool_matrix.SOURCES} >= registry.KINDS.keys()


def test_the_configs_reference_is_fresh() -> None:
    said = "make it again: python docs/hooks/keys.py > docs/config.md"
    assert (ROOT / "docs/config.md").read_text() == markdown(), said


def test_the_reference_has_every_key_of_every_section() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .+ \| .+ \| .+ \|$", markdown(), re.MULTILINE)
    schema = Config.model_json_schema()
    wanted = Counter(key for each in schema["$defs"].values() for key in each["properties"])
    # The names of steps are in their headings, and what several steps share stands once.
    steps = [each for each in schema["$defs"].values() if "const" in each["properties"].get("name", {})]
    wanted["name"] -= len(steps)
    for key in shared_keys(steps):
        wanted[key] -= sum(key in step["properties"] for step in steps) - 1
    assert shared_keys(steps).keys() >= {"p", "fill", "interpolation"}
    assert Counter(rows) == wanted
    assert {"## data", "### data.parallel", "### data.train_filelist[]", "### training.checkpoint"} <= set(
        markdown().splitlines()
    )
    assert "| `batch_size` | integer > 0 | `64` | Crops per batch and rank; or by epoch, " in markdown()


def keys(value: Any) -> Iterator[str]:
    """Yields the keys of all objects in a JSON value, at any depth."""
    if isinstance(value, dict):
        yield from value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from keys(each)


def test_what_a_run_leaves_is_described(sample: SampleData, tmp_path: Path) -> None:
    run_dir, described = tmp_path / "run", set(re.findall(r"`([^`]+)`", prose(ROOT / "docs/formats.md")))
    training = {"epochs": 1, "interval": 2, "log_positions": True}
    config = sample.config(tmp_path / "c.json", training=training, data={"annotations": "none"})
    assert program.main(["train", "-c", str(config), "-l", str(run_dir)]) == 0
    fields = {key for line in read_lines(run_dir) for key in keys(line)}
    assert {"loss", "test_crops", "queued_fraction", "busy_ms", "own_ms"} <= fields <= described
    with np.load(next(run_dir.glob("checkpoints/*.npz"))) as saved:
        assert {re.sub(r"\d+$", "NNNNN", name) for name in saved.files} <= described
        assert json.loads(str(saved["about"])).keys() <= described
    known = {"config.json", "metrics.jsonl", "model.keras", "classes.json", "positions-RANK.csv", "checkpoints"}
    known |= {"events.jsonl", "train/", "test/"}
    assert known - described == {"checkpoints"}
    left = {each.name for each in run_dir.iterdir()}
    assert left == {each.rstrip("/").replace("RANK", "0") for each in known}
    assert (run_dir / "positions-0.csv").read_text().startswith("step,position,crop\n1,0,0\n")


def test_the_index_is_described() -> None:
    _, _, section = (ROOT / "docs/formats.md").read_text().partition("## The annotation index\n")
    rows = re.findall(r"^\| (`.+?) \| (.+?) \| (.*) \|$", section.partition("\n## ")[0], re.MULTILINE)
    types = {name: kind for names, kind, _ in rows for name in re.findall(r"`(\w+)`", names)}
    short = {
        "list<element: fixed_size_list<element: float>[4]>": "list of float32 [4]",
        "list<element: int32>": "list of int32",
    }
    short |= {"list<element: string>": "list of string"}
    assert list(types) == SCHEMA.names
    said = [re.sub(r"\bitem:", "element:", str(field.type)) for field in SCHEMA]
    assert list(types.values()) == [short.get(each, each) for each in said]
    odd = next(meaning for names, _, meaning in rows if names == "`odd`")
    assert re.findall(r"`([^`]+)`", odd) == list(ODD)
