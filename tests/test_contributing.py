"""CONTRIBUTING.md and .pre-commit-config.yaml: their commands are those of the Makefile."""

import re
import shlex

from tests.support.commands import ROOT
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
