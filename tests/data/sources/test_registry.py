"""Loading a split of any source: formats that this installation does not open are said before the first batch."""

import logging
import re
from pathlib import Path

import pytest

from tests.support.routes import samples
from tests.support.sources import write_source
from tfpipe import World
from tfpipe.config import make_config
from tfpipe.data.images import by_pillow
from tfpipe.data.sources import registry
from tfpipe.errors import ConfigError

CHOSEN = [sample for sample in samples(9) if sample.boxes]
# A stand-in for HEICs: names that end so, of a format that nothing opens.
ONE, ALL = (f"{CHOSEN[2].name}.jpg",), tuple(f"{sample.name}.jpg" for sample in CHOSEN)


@pytest.mark.parametrize("kind", ["filelist", "folders", "csv", "coco", "tar", "packed"])
def test_images_without_a_decoder_are_refused_or_counted_at_load(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = write_source(kind, tmp_path, CHOSEN)

    def load(ends: tuple[str, ...], opened: str, **keys: str) -> None:
        caplog.clear()
        monkeypatch.setattr(registry, "OPTIONAL", {opened: (ends, "tfpipe[heic]")})
        registry.load_split(make_config({"data": {**data, **keys}}).data, "train", World())

    said = rf"1 of 6 images of .* end in {ONE[0]}, e\.g\. .*{ONE[0]}, and need a decoder: pip install 'tfpipe\[heic\]'"
    with pytest.raises(ConfigError, match=f'{said}, or set data.on_error to "skip"'):
        load(ONE, "HEIX")
    with caplog.at_level(logging.WARNING):
        load(ONE, "HEIX", on_error="skip")
        assert re.fullmatch(f"{said}; they are left out", caplog.messages[-1])
        load(ONE, "JPEG")
        assert not [message for message in caplog.messages if "need a decoder" in message]
    with pytest.raises(ConfigError, match=r"^6 of 6 images of .*: pip install 'tfpipe\[heic\]'$"):
        load(ALL, "HEIX", on_error="skip")


def test_formats_that_not_every_installation_opens_are_among_those_that_are_listed() -> None:
    from tfpipe.data.catalog.class_folders import SUFFIXES

    assert by_pillow.OPTIONAL.keys() <= {*by_pillow.FORMATS}
    assert {end for ends, _ in by_pillow.OPTIONAL.values() for end in ends} <= {*SUFFIXES}
