"""What a missing, an old or a lacking TensorFlow is answered with, and that nothing of it is installed unasked."""

import sys
import zipfile
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.commands import COLD, ROOT, run
from tests.support.foreign import VERSIONS
from tests.support.recorded import unpack
from tests.support.sample import SampleData
from tfpipe import requirements
from tfpipe.cli import main
from tfpipe.errors import ConfigError
from tfpipe.requirements import KERAS, OLDEST, check_keras, check_tensorflow, check_version

REMEDY = "load a module of TensorFlow 2.16 to 2.21 if this is a site that has one (jobs/README.md), or: pip install"
# A Python in which no TensorFlow can be found.
WITHOUT = "import sys; sys.modules['tensorflow'] = None; "


def test_no_requirement_names_tensorflow_or_what_it_brings_along() -> None:
    """pip would put PyPI's files over those of a site's or a vendor's build, whose distribution has another name."""
    asked = [Requirement(text) for text in requires("tfpipe") or []]
    assert {each.name for each in asked if each.marker is None} == {
        *("lxml", "numpy", "pillow", "pyarrow", "pydantic", "pyyaml", "tqdm")
    }
    extra = {each.name for each in asked if each.marker and each.marker.evaluate({"extra": "tensorflow"})}
    assert extra == {"tensorflow", "keras", "tensorboard"}


@pytest.mark.parametrize("command", ["train", "bench", "check", "pack --out x", "view -o x.png", "tune", "index"])
def test_a_missing_tensorflow_is_said_in_one_sentence(
    command: str,
    sample: SampleData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = sample.config(tmp_path / "c.json", data={"index": str(tmp_path)})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    code = main([*command.split(), "-c", str(config)])
    said = capsys.readouterr().err
    if command == "index":  # it needs none
        assert code == 0, said
    else:
        assert (
            code == 2 and said == f"tfpipe: error: {sys.executable} has no TensorFlow: {REMEDY} 'tfpipe[tensorflow]'\n"
        )


def test_what_imports_it_all_the_same_is_answered_alike(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(name: str) -> None:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr("tfpipe.cli.commands.filelist.run", lambda _: fails("tensorflow"))
    assert main(["filelist", "x", "--out", "y"]) == 2
    assert capsys.readouterr().err.startswith(f"tfpipe: error: filelist needs TensorFlow: {REMEDY}")
    monkeypatch.setattr("tfpipe.cli.commands.filelist.run", lambda _: fails("other"))
    assert main(["filelist", "x", "--out", "y"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "use",
    ["import tfpipe; tfpipe.load", "import tfpipe.torch", "import tfpipe.stages", "import tfpipe; tfpipe.keras"],
)
def test_a_program_is_answered_too(use: str) -> None:
    done = run(sys.executable, "-c", f"{WITHOUT}{use}", **COLD)
    assert done.code == 1 and done.err.splitlines()[-1].startswith("tfpipe.errors.ConfigError: ")
    assert f"has no TensorFlow: {REMEDY}" in done.err


def test_what_needs_none_runs_without(sample: SampleData, tmp_path: Path) -> None:
    """Also the order: tfpipe.Stream is of use on a node that has none."""
    config, runs = sample.config(tmp_path / "c.json"), unpack("compute", tmp_path)
    commands = [
        ["config", "-c", str(config)],
        ["filelist", str(sample.root), "--out", str(tmp_path)],
        ["report", str(runs)],
    ]
    code = f"{WITHOUT}sys.modules['xprof'] = None; import tfpipe; tfpipe.Stream; from tfpipe.cli import main; "
    done = run(sys.executable, "-c", f"{code}sys.exit(max(main(words) for words in {commands!r}))", **COLD)
    assert done.code == 0 and "COMPUTE-BOUND" in done.out, done.err


@pytest.mark.parametrize("found", ["1.15.5", "2.9", "2.14.1", "2.14.0+nv23.11"])
def test_an_old_one_is_refused(found: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^TensorFlow {found.replace('+', '.')} \(here\) is older than 2.15.*pip install"
    ):
        check_version(found, "here")


@pytest.mark.parametrize("found", ["2.15.0", "2.17.0+nv25.2", "2.21.0", "2.22.0-dev20260101", "3.0.0"])
def test_a_new_one_is_not(found: str) -> None:
    check_version(found, "here")


def test_an_old_one_is_refused_before_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "tensorflow"
    header = package / "include/tensorflow/core/public/version.h"
    header.parent.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.delitem(sys.modules, "tensorflow")
    monkeypatch.syspath_prepend(tmp_path)
    check_tensorflow()  # a build without headers is asked when it is imported
    for minor in (OLDEST[1] - 1, OLDEST[1]):
        header.write_text(f"#define TF_MAJOR_VERSION {OLDEST[0]}\n#define TF_MINOR_VERSION {minor}\n")
        if minor < OLDEST[1]:
            with pytest.raises(ConfigError, match=r"TensorFlow 2\.14 .* is older than 2\.15"):
                check_tensorflow()
    check_tensorflow()


@pytest.mark.parametrize("found", ["2.15.0", "3.0.5", "3.4.1"])
def test_training_needs_keras_3_5(
    found: str, sample: SampleData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(requirements, "version", lambda _: found)
    assert main(["train", "-c", str(sample.config(tmp_path / "c.json")), "-l", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert f"needs Keras 3.5 or newer, and Keras {found} is installed" in said
    # Keras 2 goes with TensorFlow 2.15; of another TensorFlow, which may be a site's, nothing is to be replaced.
    assert ("tfpipe[tensorflow]" in said) == found.startswith("2") and (KERAS in said) != found.startswith("2")
    assert not (tmp_path / "run").exists()


def test_other_versions_of_keras_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for found in ("3.5.0", "3.15.1", "4.0"):
        monkeypatch.setattr(requirements, "version", lambda _, found=found: found)
        check_keras()

    def none(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(requirements, "version", none)
    check_keras()
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(ConfigError, match=r"needs Keras 3\.5 or newer, and .* has none: pip install 'keras"):
        check_keras()


def test_the_keras_that_is_advised_is_one_that_was_tried() -> None:
    advised = Requirement(KERAS.removeprefix("pip install ").strip("'")).specifier
    assert all(advised.contains(number) for number in VERSIONS["keras"])


@pytest.mark.full("takes packages from an index")
def test_a_vendors_build_under_another_name_is_left_as_it_is(tmp_path: Path) -> None:
    wheel, info = tmp_path / "tensorflow_rocm-2.18.1-py3-none-any.whl", "tensorflow_rocm-2.18.1.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tensorflow/__init__.py", '__version__ = "2.18.1"\n')
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tensorflow-rocm\nVersion: 2.18.1\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    python = tmp_path / "venv/bin/python"

    def uv(*words: object) -> str:
        done = run(sys.executable, "-m", "uv", *map(str, words))
        assert done.code == 0, done.err
        return done.out

    uv("venv", "--python", sys.executable, tmp_path / "venv")
    uv("pip", "install", "--python", python, wheel, "keras==3.8.0", "numpy==2.0.2")
    before = uv("pip", "list", "--python", python, "--format", "freeze").split()
    uv("pip", "install", "--python", python, ROOT)
    after = uv("pip", "list", "--python", python, "--format", "freeze").split()
    assert set(before) <= set(after) and "tensorflow-rocm==2.18.1" in after
    assert not {"tensorflow", "tensorflow-cpu", "tensorboard"} & {each.partition("==")[0] for each in after}
    (code,) = (tmp_path / "venv").glob("lib/*/site-packages/tensorflow/__init__.py")
    assert code.read_text() == '__version__ = "2.18.1"\n'
