"""The steps of data.augment: names, arguments and defaults of torchvision; what is wrong is told with its place."""

import inspect
import json
import subprocess
import sys
from typing import Any

import pytest

from tfpipe.config import Config, make_config
from tfpipe.config import augment as steps
from tfpipe.errors import ConfigError


def parse(*augment: Any) -> list[Any]:
    return make_config({"data": {"train_filelist": "x.txt", "augment": list(augment)}}).data.augment


# Arguments of torchvision.transforms.v2 0.23 that have a default, by step.
DEFAULTS: dict[str, dict[str, Any]] = {
    "RandAugment": {"num_ops": 2, "magnitude": 9, "num_magnitude_bins": 31, "interpolation": "nearest"},
    "TrivialAugmentWide": {"num_magnitude_bins": 31, "interpolation": "nearest"},
    "AutoAugment": {"interpolation": "nearest"},
    "AugMix": {"severity": 3, "mixture_width": 3, "chain_depth": -1, "alpha": 1.0, "all_ops": True},
    "RandomGrayscale": {"p": 0.1},
    "RandomAutocontrast": {"p": 0.5},
    "RandomEqualize": {"p": 0.5},
    "RandomInvert": {"p": 0.5},
    "RandomHorizontalFlip": {"p": 0.5},
    "RandomVerticalFlip": {"p": 0.5},
    "RandomErasing": {"p": 0.5, "scale": (0.02, 0.33), "ratio": (0.3, 3.3), "value": 0},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_name_stands_for_torchvisions_defaults(name: str) -> None:
    short, long = parse(name, {"name": name})
    assert short == long
    assert {key: getattr(short, key) for key in DEFAULTS[name]} == DEFAULTS[name]


def test_every_step_is_named_as_its_class() -> None:
    classes = [each for _, each in inspect.getmembers(steps, inspect.isclass) if issubclass(each, steps.AugmentStep)]
    assert {each.__name__ for each in classes if "name" in each.model_fields} == set(steps.NAMES)


def test_a_config_is_the_same_after_it_was_written_and_read() -> None:
    written = parse(
        "AugMix",
        {"name": "ColorJitter", "brightness": 0.4, "contrast": [0.5, 2], "hue": [-0.1, 0.2], "p": 0.8},
        {
            "name": "RandomAffine",
            "degrees": [-10, 20],
            "translate": [0.1, 0.2],
            "shear": [1, 2, 3, 4],
            "fill": [1, 2, 3],
        },
        {"name": "GaussianBlur", "kernel_size": [3, 5], "sigma": 0.7},
        {"name": "RandomErasing", "value": "random"},
    )
    config = Config.model_validate_json(json.dumps({"data": {"train_filelist": "/x", "augment": []}}))
    config = config.model_copy(update={"data": config.data.model_copy(update={"augment": written})})
    assert Config.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("RandAugmet", 'data.augment[0]: received "RandAugmet", which is no step; did you mean RandAugment?'),
        ("Mosaic", 'data.augment[0]: received "Mosaic", which is no step; accepted: RandAugment, TrivialAugmentWide'),
        ({"p": 1}, 'data.augment[0]: received "None", which is no step'),
        (7, "data.augment[0]: received 7; accepted: an object"),
        (
            {"name": "RandAugment", "magnitud": 3},
            "data.augment[0].magnitud: unknown key; did you mean data.augment[0].magnitude?",
        ),
        (
            {"name": "RandAugment", "magnitude": 31},
            "magnitude: received 31; accepted: less than num_magnitude_bins, 31",
        ),
        ({"name": "RandomPosterize"}, "data.augment[0].bits: is missing: Bits that are kept."),
        ({"name": "RandomPosterize", "bits": 9}, "data.augment[0].bits: received 9; accepted: less than or equal to 8"),
        ({"name": "RandomInvert", "p": 1.5}, "data.augment[0].p: received 1.5; accepted: less than or equal to 1"),
        ({"name": "ColorJitter", "contrast": [2, 1]}, "contrast: received [2.0, 1.0]; accepted: [smallest, largest]"),
        (
            {"name": "ColorJitter", "contrast": [-1, 1]},
            "data.augment[0].contrast[0]: received -1; accepted:",
        ),
        ({"name": "ColorJitter", "hue": [-0.6, 0]}, "hue[0]: received -0.6; accepted: greater than or equal to -0.5"),
        ({"name": "GaussianBlur", "kernel_size": 4}, "kernel_size: received 4; accepted: odd numbers"),
        ({"name": "GaussianBlur", "kernel_size": 3, "sigma": [0, 1]}, "sigma[0]: received 0; accepted: greater than"),
        ({"name": "RandomAffine", "degrees": 1, "scale": [0, 1]}, "scale[0]: received 0; accepted: greater than"),
        ({"name": "RandomAffine", "degrees": 1, "shear": 90}, "shear: received 90; accepted: less than or equal to 89"),
        ({"name": "ColorJitter", "brightness": 1e10}, "brightness: received 10000000000.0; accepted: less than"),
        ({"name": "RandomAffine", "degrees": 1, "shear": [0, 1, 3, 2]}, "shear: received [3.0, 2.0]"),
        ({"name": "RandomErasing", "value": "rand"}, 'data.augment[0].value: received "rand"; accepted: '),
        ({"name": "RandomErasing", "ratio": [0, 1]}, "ratio[0]: received 0; accepted: greater than"),
        ({"name": "AutoAugment", "policy": "cifar10"}, "data.augment[0].policy: unknown key; "),
    ],
)
def test_what_is_wrong_is_told_with_its_place_and_what_is_accepted(step: Any, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(step)
    assert said in str(error.value)


def test_a_single_step_is_no_list() -> None:
    with pytest.raises(ConfigError, match=r'received "RandAugment"; accepted: a list of steps, each a name or {"name"'):
        make_config({"data": {"train_filelist": "x.txt", "augment": "RandAugment"}})


def test_no_module_is_searched_for_the_docstrings_of_operations() -> None:
    """With TensorFlow's modules that search took a second, of each process."""
    code = (
        "import inspect\nasked = []\nreal = inspect.getmodule\n"
        "inspect.getmodule = lambda *args: asked.append(args) or real(*args)\n"
        "import tfpipe.config.augment as steps\nprint(len(asked) / len(steps.STEPS))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 40
