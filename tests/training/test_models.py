"""Networks: shapes, what is done to the pixels, and models that load without tfpipe."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest

from tfpipe.config import Config
from tfpipe.config.data_sections import Normalize
from tfpipe.errors import ConfigError
from tfpipe.training.models import IMAGENET_MEAN, IMAGENET_STD, _block, applications, build_model


def config(name: str = "resnet18", dtype: str = "uint8", channels: int = 3, side: int = 32, **args: object) -> Config:
    data = {"train_filelist": Path("unused"), "crop_image_size": (side, side), "dtype": dtype, "num_channels": channels}
    return Config.model_validate({"data": data, "model": {"name": name, "args": args}})


@pytest.mark.parametrize(
    ("args", "weights"), [({}, 11_176_512), ({"stem": "small"}, 11_168_832), ({"norm": "group"}, 11_176_512)]
)
def test_resnet18_has_the_weights_of_the_paper(args: dict, weights: int) -> None:
    """Trainable ones: 11,689,512 with ImageNet's 1000 classes, 11,173,962 with the small stem and CIFAR's 10."""
    model = build_model(config(**args), 10)
    trainable = sum(int(np.prod(each.shape)) for each in model.trainable_weights)
    assert trainable == weights + 10 * (512 + 1)
    assert model.output_shape == (None, 10)


def test_no_convolution_is_of_the_kind_that_ends_the_process() -> None:
    model = build_model(config(width=8), 4)
    sizes = {(each.kernel_size, each.strides) for each in model.layers if isinstance(each, keras.layers.Conv2D)}
    assert ((3, 3), (2, 2)) in sizes and ((1, 1), (1, 1)) in sizes and ((1, 1), (2, 2)) not in sizes


def test_a_shortcut_takes_every_other_pixel() -> None:
    """Checks the values against those that a stride of 2 gives, also of an odd number of pixels."""
    inputs = keras.Input((7, 7, 16))
    model = keras.Model(inputs, _block(inputs, 32, stride=2, norm="batch"))
    (kernel,) = (
        each.kernel for each in model.layers if isinstance(each, keras.layers.Conv2D) and each.kernel_size == (1, 1)
    )
    pixels = np.random.default_rng(0).random((2, 7, 7, 16), np.float32)
    # What the other branch adds begins as nothing.
    expected = np.maximum(pixels[:, ::2, ::2] @ kernel.numpy()[0, 0], 0) / np.sqrt(1 + 1e-5)
    np.testing.assert_allclose(model(pixels), expected, rtol=1e-4, atol=1e-5)


def test_pixels_are_normalised_inside_the_model_whatever_the_dtype() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    expected = (pixels / 255 - IMAGENET_MEAN) / IMAGENET_STD
    for dtype, images in (("uint8", pixels), ("float32", (pixels / 255).astype(np.float32))):
        model = build_model(config(dtype=dtype, width=8), 4)
        normalised = keras.Model(model.input, model.get_layer("normalise").output)(images)
        np.testing.assert_allclose(normalised, expected, atol=1e-4)


def test_pixels_that_the_pipeline_has_normalised_are_the_same_inside_the_model() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    mean, std = [0.5, 0.4, 0.3], [0.25, 0.5, 1.0]
    plain = config(dtype="float32", width=8)
    section = Normalize(mean=mean, std=std)
    normal = plain.model_copy(update={"data": plain.data.model_copy(update={"normalize": section})})
    model = build_model(normal, 4)
    images = ((pixels / 255 - mean) / std).astype(np.float32)
    inner = keras.Model(model.input, model.get_layer("pixels").output)(images)
    np.testing.assert_allclose(inner, pixels, atol=1e-3)


@pytest.mark.parametrize(("name", "args"), [("resnet18", {"width": 8}), ("MobileNetV2", {"alpha": 0.35})])
def test_gray_images_are_taken_too(name: str, args: dict) -> None:
    model = build_model(config(name, channels=1, **args), 4)
    assert model(np.zeros((2, 32, 32, 1), np.uint8)).shape == (2, 4)


def test_the_skeletons_resnet_is_an_untrained_resnet50(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def network(input_shape: tuple[int, ...], **how: object) -> keras.Model:
        asked.update(how)
        return keras.Sequential([keras.Input(input_shape), keras.layers.Flatten(), keras.layers.Dense(how["classes"])])

    network.__module__ = keras.applications.ResNet50.__module__
    monkeypatch.setattr(keras.applications, "ResNet50", network)
    assert build_model(config("resnet"), 7).name == "ResNet50"
    assert asked == {"classes": 7, "classifier_activation": None, "weights": None}


def test_an_application_saves_and_loads_as_plain_keras(tmp_path: Path) -> None:
    model = build_model(config("MobileNetV2"), 7)
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(images), model(images), atol=1e-5)
    assert model.output_shape == (None, 7)
    assert "softmax" not in str(model.get_config())


@pytest.mark.parametrize("name", ["keras.applications:MobileNetV2", "keras.applications.mobilenet_v2:MobileNetV2"])
def test_an_application_may_be_named_with_its_module(name: str) -> None:
    model = build_model(config(name), 7)
    assert model.name == "MobileNetV2" and model.output_shape == (None, 7)


@pytest.mark.full("builds networks of up to 350 million weights")
@pytest.mark.parametrize("name", sorted(applications()))
def test_each_application_has_the_datas_classes_with_and_without_its_module(name: str) -> None:
    side = 224 if name == "NASNetMobile" else 331 if name == "NASNetLarge" else 96
    for named in (name, f"keras.applications:{name}"):
        assert build_model(config(named, side=side), 7).output_shape == (None, 7), named
        keras.utils.clear_session()


@pytest.mark.parametrize(
    ("args", "shapes"),
    [
        ({"outputs": 1000}, [(None, 1000)]),
        ({"count": 2}, [(None, 7), (None, 7)]),
        ({"flat": False}, [(None, 32, 32, 7)]),
    ],
)
def test_outputs_of_another_form_are_refused_before_training(args: dict, shapes: list) -> None:
    message = f"gives outputs of the shapes {shapes}, and the data have 7 classes: accepted: logits of the shape "
    with pytest.raises(ConfigError, match=re.escape(f"{message}(None, 7)")):
        build_model(config("tests.support.models:odd", **args), 7)


def test_logits_are_full_precision_under_a_mixed_policy() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = build_model(config(width=8), 4)
    finally:
        keras.config.set_dtype_policy("float32")
    assert model.get_layer("logits").compute_dtype == "bfloat16"
    assert model(np.zeros((1, 32, 32, 3), np.uint8)).dtype == "float32"


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("resnet19", {}, r'model.name "resnet19" is not known; .*accepted: resnet18, .*ResNet50'),
        ("Resnet5O", {}, r'model.name "Resnet5O" is not known; did you mean ResNet50\? accepted: resnet18, '),
        ("resnet18", {"stem": "big"}, r'stem must be "imagenet" or "small", received "big"'),
        ("resnet18", {"norm": "layer"}, r'norm must be "batch" or "group", received "layer"'),
        ("resnet18", {"depth": 3}, r"model.args .* do not fit model.name resnet18: .*depth"),
        ("ResNet50", {"wide": 3}, r"model.args .* do not fit model.name ResNet50"),
        *(
            (name, {"channels": 1}, rf"^model.name {name} .* data.num_channels is 1; set it to 3")
            for name in ("ResNet50", "DenseNet121")
        ),
        ("no.such:network", {}, r"model.name: cannot import no.such"),
        ("tests.support.models:tiny", {"depth": 3}, r"model.args .* do not fit model.name tests.support.models:tiny"),
    ],
)
def test_what_is_not_known_is_named(name: str, args: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model(config(name, **args), 4)
