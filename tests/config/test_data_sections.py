"""The sections for mixing and normalising: what contradicts itself is named."""

from pathlib import Path
from typing import Any

import pytest

from tfpipe import ConfigError
from tfpipe.config import Config, make_config
from tfpipe.config.data_sections import Mix, Normalize

GRAY = {"mean": [0.5], "std": [0.25]}


def config(**data: Any) -> Config:
    return make_config({"data": {"train_filelist": str(Path("unused").absolute()), **data}})


def test_defaults_and_their_dump_are_accepted() -> None:
    data = config(mix={"mixup": 1}, normalize=GRAY, dtype="float16", num_channels=1).data
    assert (data.mix, data.normalize) == (Mix(mixup=1.0), Normalize(mean=[0.5], std=[0.25]))
    again = config(**data.model_dump(mode="json", include={"mix", "normalize", "dtype", "num_channels"})).data
    assert (again.mix, again.normalize) == (data.mix, data.normalize)
    assert (config().data.mix, config().data.normalize) == (None, None)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"mix": {"mixup": 0}}, r"data\.mix\.mixup: received 0; accepted: greater than 0"),
        ({"mix": {"cutmix": -1.0}}, r"data\.mix\.cutmix: received -1.0; accepted: greater than 0"),
        ({"mix": {"mixup": 1, "prob": 0}}, r"data\.mix\.prob: received 0; accepted: greater than 0"),
        ({"mix": {"mixup": 1, "prob": 1.5}}, r"data\.mix\.prob: received 1.5; accepted: less than or equal to 1"),
        ({"mix": {"mix_up": 1}}, r"data\.mix\.mix_up: unknown key; did you mean data\.mix\.mixup"),
        ({"normalize": {"mean": [0.5], "std": [0]}, "num_channels": 1}, r"data\.normalize\.std.*greater than 0"),
        ({"normalize": {"mean": [0.5]}}, r"data\.normalize\.std"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(data: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**data)
