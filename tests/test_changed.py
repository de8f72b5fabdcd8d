"""The selection of `make test-changed`: which tests a change in a small tree concerns, and in which order."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import changed as module
from tests.support.changed import build_graph, changed_since, concerned, within

TREE = {
    "tfpipe/__init__.py": "if TYPE_CHECKING:\n    from tfpipe.data.pipeline import build\n",
    "tfpipe/errors.py": "class ConfigError(Exception): ...\n",
    "tfpipe/data/__init__.py": "from tfpipe.data.masks import draw\n",
    "tfpipe/data/masks.py": "from tfpipe.native import core\n",
    "tfpipe/data/labels.py": "def read():\n    from tfpipe.data import masks\n",
    "tfpipe/data/pipeline.py": "from tfpipe.data.labels import read\n",
    "tfpipe/cli/program.py": 'def run(name):\n    import_module(f"tfpipe.cli.commands.{name}")\n',
    "tfpipe/cli/commands/check.py": "import tfpipe.data.labels\n",
    "tfpipe/native/__init__.py": "def core(): ...\n",
    "tfpipe/native/codec/planes.h": "",
    "tfpipe/native/codec/idct.c": '#include "planes.h"\n',
    "tfpipe/native/ops/mix.c": '#include "../codec/planes.h"\n',
    "tests/conftest.py": "from tests.support.sample import make\n",
    "tests/support/sample.py": "import tfpipe\n",
    "tests/support/pictures.py": "from tfpipe.data.masks import draw\n",
    "tests/support/script.py": "from near import far\n",
    "tests/support/near.py": "",
    "tests/cli/test_program.py": "from tfpipe.cli.program import run\n",
    "tests/config/test_load.py": "",
    "tests/data/conftest.py": "from tests.support.near import far\n",
    "tests/data/test_masks.py": '"""Not tfpipe.data.labels."""\n',
    "tests/data/test_labels.py": "",
    "tests/data/test_shown.py": "from tests.support.pictures import show\n",
    "tests/native/test_mix.py": "",
    "tests/native/test_core.py": "",
    "tests/docs/test_pages.py": 'PAGE = ROOT / "docs/keys.md"\n',
    "tests/docs/test_index.py": "",
    "tests/jobs/test_scripts.py": "",
    "tests/test_attribute.py": "import tfpipe\n\ndef test():\n    tfpipe.build().run()\n",
    "tests/test_package.py": "from tfpipe.data import draw\n",
    "tests/test_script.py": 'run("tests/support/script.py")\n',
    "tests/test_string.py": 'patch("tfpipe.errors.ConfigError.code", 1)\n',
    "tests/test_whole.py": 'run(ROOT / "train.py", ROOT / "configs/sample.json")\n',
}
MASKS, LABELS = "tests/data/test_masks.py", "tests/data/test_labels.py"
LIBRARY = {"tests/native/test_core.py", "tests/native/test_mix.py"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository's files, without git."""
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def selected(root: Path, *changed: str) -> dict[int, set[str]]:
    """Returns the tests that a change concerns, by distance."""
    concerns = concerned(build_graph(root), changed, {})
    assert len({each.file for each in concerns}) == len(concerns)
    found: dict[int, set[str]] = {}
    for each in concerns:
        found.setdefault(each.distance, set()).add(each.file)
    return found


def test_mirrors_and_importers_are_nearest_then_each_import_and_helper_adds_one(root: Path) -> None:
    assert selected(root, "tfpipe/data/masks.py") == {
        0: {MASKS, "tests/test_package.py"},
        1: {LABELS, "tests/data/test_shown.py"},
        # The pipeline and the command have no test of their own: those of their folders.
        2: {"tests/cli/test_program.py", "tests/test_attribute.py"},
    }


def test_a_name_that_a_package_passes_on_is_that_of_its_home(root: Path) -> None:
    assert selected(root, "tfpipe/data/pipeline.py")[0] == {
        *(MASKS, LABELS, "tests/data/test_shown.py"),
        "tests/test_attribute.py",
    }
    # The package itself concerns the same test, and no mirror: next to it are the tests of whole runs.
    assert selected(root, "tfpipe/__init__.py") == {0: {"tests/test_attribute.py"}}


def test_modules_named_in_strings_count_but_not_in_docstrings(root: Path) -> None:
    assert selected(root, "tfpipe/errors.py") == {0: {"tests/test_string.py"}}
    assert selected(root, "tests/support/script.py") == {0: {"tests/test_script.py"}}
    assert MASKS not in selected(root, "tfpipe/data/labels.py")[0]
    assert selected(root, "tfpipe/cli/commands/check.py") == {0: {"tests/cli/test_program.py"}}


def test_helpers_reach_tests_through_a_conftest_and_a_script(root: Path) -> None:
    assert selected(root, "tests/support/near.py") == {
        1: {MASKS, LABELS, "tests/data/test_shown.py", "tests/test_script.py"}
    }


def test_a_changed_test_is_taken_and_a_deleted_one_is_not(root: Path) -> None:
    assert selected(root, LABELS, "tests/data/test_gone.py") == {0: {LABELS}}


@pytest.mark.parametrize("helper", ["tests/conftest.py", "tests/support/sample.py"])
def test_the_conftest_of_all_tests_concerns_all_after_the_others(helper: str, root: Path) -> None:
    (last,) = selected(root, helper).values()
    assert last == set(build_graph(root).tests)
    nearest, _, farthest = selected(root, helper, "tfpipe/data/labels.py").items()
    assert nearest == (0, {LABELS}) and farthest[1] >= {"tests/config/test_load.py", "tests/test_whole.py"}


def test_importers_of_a_deleted_module_are_found(root: Path) -> None:
    (root / "tfpipe/data/labels.py").unlink()
    gone = ["tfpipe/data/labels.py"]
    distances = {each.file: each.distance for each in concerned(build_graph(root, gone), gone, {})}
    assert distances[LABELS] == 0 and distances["tests/test_attribute.py"] == 1


def test_c_concerns_its_mirror_then_the_tests_of_the_library_then_those_of_its_callers(root: Path) -> None:
    found = selected(root, "tfpipe/native/ops/mix.c")
    assert [found[distance] for distance in range(3)] == [
        {"tests/native/test_mix.py"},
        {"tests/native/test_core.py"},
        {MASKS, "tests/test_package.py"},
    ]
    # It has no mirror.
    assert selected(root, "tfpipe/native/codec/idct.c")[0] == LIBRARY


def test_a_header_is_a_part_of_the_c_files_that_include_it(root: Path) -> None:
    first, *_ = concerned(build_graph(root), ["tfpipe/native/codec/planes.h"], {"tests/native/test_core.py": 0.1})
    assert (first.file, first.reason) == (
        "tests/native/test_mix.py",
        "mirrors tfpipe/native/ops/mix.c, which uses tfpipe/native/codec/planes.h",
    )


@pytest.mark.parametrize(
    ("changed", "nearest", "next_to_it"),
    [
        ("configs/sample.json", {"tests/test_whole.py"}, {"tests/config/test_load.py"}),
        ("configs/other.json", {"tests/config/test_load.py"}, set()),
        ("docs/keys.md", {"tests/docs/test_pages.py"}, {"tests/docs/test_index.py"}),
        ("jobs/slurm.sh", {"tests/jobs/test_scripts.py"}, set()),
        ("train.py", {"tests/test_whole.py"}, set()),
        # No part of a name: not keys.md.
        ("s.md", set(), set()),
    ],
)
def test_other_files_concern_the_tests_that_name_them_and_their_folder(
    changed: str, nearest: set[str], next_to_it: set[str], root: Path
) -> None:
    found = selected(root, changed)
    assert (found.get(0, set()), found.get(1, set())) == (nearest, next_to_it)


def test_the_budget_takes_the_nearest_whole_then_what_fits(root: Path) -> None:
    costs = {MASKS: 30.0, "tests/test_package.py": 2.0, LABELS: 9.0, "tests/data/test_shown.py": 1.0}
    concerns = concerned(build_graph(root), ["tfpipe/data/masks.py"], costs)

    def taken(budget_s: float) -> list[str]:
        chosen, left = within(concerns, budget_s)
        assert sorted([*chosen, *left]) == concerns
        return [each.file for each in chosen]

    # The mirror comes first although it costs more.
    assert taken(0) == [MASKS, "tests/test_package.py"]
    assert taken(38) == [MASKS, "tests/test_package.py", "tests/data/test_shown.py", "tests/test_attribute.py"]
    # Of one distance the mirror comes first; without a row in the table a file counts five seconds.
    assert taken(42)[2:] == [LABELS, "tests/data/test_shown.py"]
    assert len(taken(51)) == 5 and len(taken(52)) == 6


def test_changes_are_those_of_the_branch_of_the_files_and_untracked_ones(root: Path) -> None:
    def git(*words: str) -> None:
        how = ("-c", "user.name=a", "-c", "user.email=a", "-c", "init.defaultBranch=main")
        subprocess.run(["git", *how, *words], cwd=root, check=True, capture_output=True)

    git("init")
    git("add", "tfpipe", "tests")
    git("commit", "-m", "base")
    git("checkout", "-b", "branch")
    (root / "tfpipe/errors.py").write_text("committed")
    (root / "tests/test_string.py").unlink()
    git("commit", "-am", "on the branch")
    git("checkout", "main")
    (root / "tfpipe/data/masks.py").write_text("not of the branch")
    git("commit", "-am", "on main")
    git("checkout", "branch")
    (root / "tfpipe/data/labels.py").write_text("not committed")
    (root / "tests/test_ä.py").write_text("untracked")
    assert changed_since(root, "main") == [
        *("tests/test_string.py", "tests/test_ä.py", "tfpipe/data/labels.py", "tfpipe/errors.py")
    ]


def test_the_list_is_on_stdout_and_the_reasons_and_the_number_left_out_on_stderr(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "ROOT", root)
    monkeypatch.setattr(module, "changed_since", lambda *_: ["tfpipe/data/masks.py"])
    (root / "tests/durations.tsv").write_text(f"file\ttests\tcpu_s\twall_s\n{MASKS}\t3\t140.0\t80.0\n")
    monkeypatch.setattr(sys, "argv", ["changed", "--list", "--budget-s", "139"])
    assert module.main() == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [MASKS, "tests/test_package.py"]
    assert f"0  140.0 s  {MASKS}: mirrors tfpipe/data/masks.py\n" in err
    assert "4 farther test files are left out: make test\n" in err
    assert "more than 139 s" in err
