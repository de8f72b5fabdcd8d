"""The limits of `make lint`: each is broken in a small package, and named."""

from pathlib import Path

import pytest

from tests.support import full
from tests.support.commands import ROOT
from tests.support.limits import EXCEPTIONS, GATE_CPU_S, KEYS, LINES, MOST, beyond, beyond_in_gate

TRIPLES, PARTICIPLES, NAMED, FRAGMENTS, ORDER, ASKED = MOST
TAKES = 'def f{}(data: "DataConfig | None", world, *, catalog: "Catalog") -> None: ...\n'

PLANTED = {
    "a long module": ({"a.py": "x = 0\n" * 401}, "tfpipe/a.py: 401 lines, more than 400"),
    "a long function": ({"a.py": "def f():\n" + "    x = 0\n" * 60}, "tfpipe/a.py:1: f: 61 lines, more than 60"),
    "parameters": (
        {"a.py": "class A:\n    def f(self, a, b, /, c, d, *args, e, f, g=0, **others): ...\n"},
        "tfpipe/a.py:2: A.f: 7 parameters, more than 6",
    ),
    "a folder": ({f"data/m{number}.py": "" for number in range(8)}, "tfpipe/data: 8 modules, more than 7"),
    "a docstring": ({"a.py": '"""Of nothing."""\n'}, 'tfpipe/a.py:1: a docstring begins with "Of"'),
    "a name twice": (
        {"a.py": "class A: ...\n", "b/c.py": "class A: ...\n"},
        "class A has 2 definitions, tfpipe/a.py:1, tfpipe/b/c.py:1: give each a name",
    ),
    "the three together": (
        {"a.py": "".join(map(TAKES.format, range(MOST[TRIPLES] + 1)))},
        f"{TRIPLES}: {MOST[TRIPLES] + 1}, more than {MOST[TRIPLES]}:\n  tfpipe/a.py:f0 1",
    ),
    "participles as names": (
        {"a.py": "def f(own): ...\n" + "found = 0\n" * MOST[PARTICIPLES]},
        f"{PARTICIPLES}: {MOST[PARTICIPLES] + 1}, more than",
    ),
    "constants of what": (
        {"a.py": "MOST = 0\n" * (MOST[PARTICIPLES] + 1)},
        f"{PARTICIPLES}: {MOST[PARTICIPLES] + 1}, more",
    ),
    "functions named by participles": (
        {"a.py": "def _joined(): ...\ndef embedding(): ...\n" * (MOST[NAMED] + 1)},
        f"{NAMED}: {MOST[NAMED] + 1}, more than {MOST[NAMED]}:\n  tfpipe/a.py:_joined {MOST[NAMED] + 1}",
    ),
    "fragments": (
        {"a.py": f'"""{"None: nothing. " * (MOST[FRAGMENTS] + 1)}"""\n'},
        f"{FRAGMENTS}: {MOST[FRAGMENTS] + 1}, more than",
    ),
    "the order again": ({"a.py": "a.order(b)\n" * (MOST[ORDER] + 1)}, f"{ORDER}: {MOST[ORDER] + 1}, more than"),
    "a catalog's source": (
        {"a.py": "catalog.source.read()\n" * (MOST[ASKED] + 1)},
        f"{ASKED}: {MOST[ASKED] + 1}, more than",
    ),
    "the first of several": (
        {"data/sources/a.py": "y = next(iter(values))\nx = values[0]\n"},
        "tfpipe/data/sources/a.py: 2 times the first of several, more than 0 (none is): [1, 2]",
    ),
    "a circle for a type checker": (
        {
            "a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tfpipe.b import c\n",
            "b/__init__.py": "",
            "b/c.py": "from tfpipe.a import f\n",
        },
        "modules import each other in a circle: tfpipe.",
    ),
}
LEGAL = {
    "a.py": "def f():\n    from tfpipe.b import g\n",
    "b.py": "from tfpipe import a\n\nclass A:\n    class Inner: ...\n\nclass B:\n    class Inner: ...\n",
    "__init__.py": "from tfpipe.b import A\n",
    "loader.py": 'class Loader:\n    """Batches."""\n',
    "jax.py": "class Loader: ...\n",
}


def found(root: Path, files: dict[str, str]) -> list[str]:
    """The messages about a package of these files, those in EXCEPTIONS left out."""
    for name, text in files.items():
        (root / "tfpipe" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "tfpipe" / name).write_text(text)
    return [message for key, message in beyond(root) if key not in EXCEPTIONS or key == "circle"]


@pytest.mark.parametrize(("files", "message"), PLANTED.values(), ids=PLANTED.keys())
def test_what_is_beyond_a_limit_is_named(files: dict[str, str], message: str, tmp_path: Path) -> None:
    (only,) = found(tmp_path, files)
    assert only.startswith(message)


def test_what_is_within_the_limits_is_not(tmp_path: Path) -> None:
    assert found(tmp_path, LEGAL) == []


@pytest.mark.parametrize(
    ("pattern", "name"), [("tfpipe/tools/**/*.py", "__init__.py"), ("tfpipe/native/**/*.[ch]", "codec/a.c")]
)
def test_the_lines_of_a_folder_have_a_budget(pattern: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / pattern.partition("*")[0] / name
    file.parent.mkdir(parents=True)
    for lines, keys in ((LINES[pattern], []), (LINES[pattern] + 1, [f"lines of {pattern}"])):
        file.write_text("\n" * lines)
        assert [key for key, _ in beyond(tmp_path) if key.startswith("lines")] == keys


def test_the_keys_of_a_config_have_a_budget(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for rows, keys in ((KEYS, []), (KEYS + 1, ["keys"])):
        (tmp_path / "docs/config.md").write_text("| Key | Type |\n" + "| `a` | `1` or `2` |\n" * rows)
        assert [key for key, _ in beyond(tmp_path)] == keys


def test_the_tests_time_has_a_budget(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / "tests" / name).touch()
    table = tmp_path / "tests/durations.tsv"
    assert list(beyond_in_gate(tmp_path)) == [], "where nothing is recorded"
    table.write_text(f"file\ttests\tcpu_s\twall_s\ntests/test_a.py\t9\t{GATE_CPU_S - 6}\t9.0\n")
    assert list(beyond_in_gate(tmp_path)) == []
    table.write_text(f"{table.read_text()}tests/test_c.py\t9\t2.0\t9.0\n(starting)\t0\t0.5\t0.0\n")
    gone, (_, total) = beyond_in_gate(tmp_path)
    assert gone[1].startswith("tests/test_c.py: is in tests/durations.tsv and is gone")
    assert total.startswith(f"tests/durations.tsv: {GATE_CPU_S + 2} CPU seconds, more than {GATE_CPU_S}; most of it:\n")


def test_each_row_of_what_only_the_full_run_holds_names_a_test(collected: list[str] | None) -> None:
    missing = full.table().unmatched(collected or [])
    if collected is None:  # a part of the tests was asked for: their files must be there
        missing = [row for row in full.table().exact if not (ROOT / row.partition("::")[0]).exists()]
    assert missing == []


def test_what_only_the_full_run_holds_is_read_with_its_reason() -> None:
    table = full.parse("# A heading.\n\n# Two lines\n# of a reason\na/test_b.py::test_c[1]\nd/*[2.0]\n")
    assert table.reason_of("tests/a/test_b.py::test_c[1]") == "Two lines of a reason"
    assert table.reason_of("tests/d/test_e.py::test_f[2.0]") == "Two lines of a reason"
    for other in ("tests/a/test_b.py::test_c[10]", "tests/d/test_e.py::test_f[210]", "tests/a/test_b.py::test_c"):
        assert table.reason_of(other) is None
    assert table.unmatched(["tests/d/x[2.0]"]) == ["tests/a/test_b.py::test_c[1]"]
    assert len(table.unmatched([])) == 2


def test_the_linters_see_imports_of_type_checkers_booleans_and_types() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert "exclude_type_checking_imports" not in text
    assert '"FBT003"]' in text.split("select = ")[1].splitlines()[0]
    for strict in ("config", "data.catalog", "data.order", "util"):
        assert f'"tfpipe.{strict}.*"' in text.split("[[tool.mypy.overrides]]")[1]
