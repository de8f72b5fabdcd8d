"""The keys of a sweep: their values as --set takes them, and the config at each."""

from pathlib import Path

import pytest

from tests.support.sample import SampleData
from tfpipe.config import load_config
from tfpipe.errors import ConfigError
from tfpipe.tools.bench.axes import Axis, settings_of


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("data.parallel.read=2,64", "data.parallel.read", ("2", "64")),
        ("data.prefetch_buffer_size=0,auto", "data.prefetch_buffer_size", ("0", "auto")),
        ("data.crop_image_size=[64,64],[224,224]", "data.crop_image_size", ("[64, 64]", "[224, 224]")),
        ("data.threads=null,2", "data.threads", ("null", "2")),
        ("data.threads=0.5,null", "data.threads", ("0.5", "null")),
    ],
)
def test_an_axis_is_a_key_and_its_values(text: str, key: str, values: tuple[str, ...]) -> None:
    assert Axis.parse(text) == (key, values)


@pytest.mark.parametrize(
    "text", ["data.threads", "data.threads=2", "data.threads=2,2", "data.threads=2,,3", "model.name=a,b"]
)
def test_no_axis_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"e\.g\. data\.parallel\.read=16,64,128; received"):
        Axis.parse(text)


def test_the_settings_are_every_combination(sample: SampleData, tmp_path: Path) -> None:
    path = sample.config(tmp_path / "c.json")
    axes = [Axis.parse("data.parallel.read=2,64"), Axis.parse("data.threads=null,3")]
    found = settings_of(axes, lambda sets: load_config(path, sets))
    assert list(found) == [("2", "null"), ("2", "3"), ("64", "null"), ("64", "3")]
    assert [(each.data.parallel.read, each.data.threads) for each in found.values()] == [
        (2, None),
        (2, 3),
        (64, None),
        (64, 3),
    ]
    with pytest.raises(ConfigError, match="one key or two at once, received 3"):
        settings_of([*axes, axes[0]], lambda sets: load_config(path, sets))
