"""URLs with a login, and URLs mixed with paths, are refused for lists and tables alike."""

import csv
from pathlib import Path

import pytest

from tfpipe import World
from tfpipe.cli import main
from tfpipe.config import make_config
from tfpipe.data.catalog.filelist import check_paths
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError, TfpipeError

LOGIN = "https://user:hidden@host/a/1.jpg"


def table(folder: Path, *paths: str) -> Path:
    with (folder / "train.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label"])
        rows.writerows([path, f"class{number % 2}"] for number, path in enumerate(paths))
    return folder / "train.csv"


@pytest.mark.parametrize("command", ["order", "check", "index", "pack"])
def test_a_password_in_a_table_is_refused_and_never_shown(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    source = {"kind": "table", "path": str(table(tmp_path, "https://host/0.jpg", LOGIN, "https://host/2.jpg"))}
    (tmp_path / "c.json").write_text(f'{{"data": {{"source": {str(source).replace(chr(39), chr(34))}}}}}')
    words = ["--out", str(tmp_path / "out")] if command == "pack" else []
    assert main([command, "-c", str(tmp_path / "c.json"), *words]) == 2
    said = "".join(capsys.readouterr()) + caplog.text
    assert "hidden" not in said
    if command != "index":  # which is refused for any table
        assert "has a URL with a user or a password, https://***@host/a/..." in said and "~/.netrc" in said
    stored = [file for file in tmp_path.rglob("*") if file.is_file() and file.name != "train.csv"]
    assert not any(b"hidden" in file.read_bytes() for file in stored)


def test_urls_and_paths_of_a_table_do_not_mix(tmp_path: Path) -> None:
    source = {"kind": "table", "path": str(table(tmp_path, "a.jpg", "b.jpg", "https://host/2.jpg"))}
    said = (
        rf"holds both URLs and paths, e\.g\. https://host/2.jpg \(image 3\) and {tmp_path}/a.jpg \(image 1\): use one"
    )
    with pytest.raises(ConfigError, match=said):
        load_split(make_config({"data": {"source": source}}).data, "train", World())


def test_urls_alone_and_paths_alone_are_accepted() -> None:
    for paths in (["https://host/a/1@2.jpg", "s3://bucket/2.jpg"], ["/a@b/1.jpg", "/c/user:x@y/2.jpg"]):
        check_paths(FileList.of(paths), "the list", "line")


def test_no_error_repeats_a_password() -> None:
    """The password is hidden in every error, and in every quote of one."""
    for text in (f"cannot fetch {LOGIN}: gone", f'{{"proxy": "{LOGIN}"}}', f"{LOGIN} and {LOGIN}"):
        error = TfpipeError(text)
        assert "hidden" not in repr(error) and "https://***@host/a/1.jpg" in str(error)
    assert str(TfpipeError("https://host/a/user:x@y.jpg")) == "https://host/a/user:x@y.jpg"
