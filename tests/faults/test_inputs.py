"""Inputs that cannot be used are refused with code 2 and in words that say what to do, before anything starts."""

import json
from pathlib import Path

import pytest

from tests.support.bad_inputs import INPUTS, LIST, Input
from tests.support.images import encoded, picture
from tfpipe.cli import main


def write(tmp_path: Path, given: Input) -> Path:
    """The config, and next to it a list of three good images and what else there is."""
    for number, line in enumerate(LIST.split()):
        (tmp_path / line).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / line).write_bytes(encoded(picture(20, 30, number)))
    for name, contents in {"list.txt": LIST, **given.files}.items():
        if contents is None:
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    config = tmp_path / "c.json"
    config.write_text(given.data if isinstance(given.data, str) else json.dumps({"data": given.data}))
    return config


@pytest.mark.parametrize("given", INPUTS, ids=lambda given: given.name)
def test_it_is_refused_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str], given: Input) -> None:
    config = write(tmp_path, given)
    assert main(["order", "-c", str(config)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.replace(str(tmp_path), "PATH") == f"tfpipe: error: {given.says}\n"
