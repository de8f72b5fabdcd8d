"""CONTRIBUTING.md and .pre-commit-config.yaml: their commands are those of the Makefile; what it installs, it says."""

import re
import shlex
import shutil
from pathlib import Path

from tests.support.commands import ROOT, run
from tests.support.documents import commands

MAKEFILE = (ROOT / "Makefile").read_text()


def recipe(target: str) -> list[str]:
    """The commands of a target, with .venv/bin and the files in C in the variables' place."""
    (c_files,) = re.findall(r"^C_FILES := \$\(wildcard (.*)\)$", MAKEFILE, re.MULTILINE)
    (lines,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    lines = lines.replace("$(BIN)", ".venv/bin").replace("$(C_FILES)", c_files)
    return [line.strip() for line in lines.splitlines()]


def test_the_targets_that_contributing_names_are_in_the_makefile() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    named = {*re.findall(r"`make ([a-z-]+)", text), *re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)}
    assert {"lint", "test", "test-full", "release"} <= named <= set(phony.split())
    for target in named:
        assert re.search(rf"^{target}:.*## ", MAKEFILE, re.MULTILINE), f"make help does not list {target}"


def test_the_modules_that_contributing_runs_exist() -> None:
    modules = [words[2] for line in commands(ROOT / "CONTRIBUTING.md") if "-m" in (words := shlex.split(line))]
    assert {"tests.chaos", "tests.fuzz", "tests.mutants"} <= set(modules)
    for module in modules:
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_the_hooks_before_a_commit_are_the_linters_of_make_lint() -> None:
    entries = re.findall(r"^ +entry: (.*)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.MULTILINE)
    # Only a shell expands the shell scripts' names.
    hooks = [words[2] if (words := shlex.split(entry))[:2] == ["bash", "-c"] else entry for entry in entries]
    assert hooks == recipe("lint")


def test_an_installation_is_said_and_leaves_nothing_but_its_stamp(tmp_path: Path) -> None:
    """The requirements have the > and the quotes of a shell."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/.created").touch()
    (tmp_path / ".venv/bin/python").symlink_to(shutil.which("true") or "")
    before = {*tmp_path.rglob("*")}
    done = run("make", "-C", tmp_path, "--no-print-directory", ".venv/.installed-lint")
    assert done.code == 0, done.err
    assert re.match(r"installing into \.venv, which grows by up to \d+ MB: .*import-linter>=", done.out)
    assert {*tmp_path.rglob("*")} - before == {tmp_path / ".venv/.installed-lint"}
