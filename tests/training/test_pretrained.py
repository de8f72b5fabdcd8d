"""Fine-tuning: which weights a network gets, which it keeps, and which layers are not trained."""

import logging
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib import request

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.support.sample import TINY
from tfpipe import Stream, World
from tfpipe.config import Config
from tfpipe.errors import ConfigError
from tfpipe.training.backends import ParallelModel, averaged_statistics
from tfpipe.training.checkpointing.checkpoints import Checkpoint, GlobalBatch, State, check_contract
from tfpipe.training.checkpointing.resume import _slots
from tfpipe.training.checkpointing.start import Start
from tfpipe.training.loop import compile_model
from tfpipe.training.models import _connections_within, build_model, freeze, load_weights, weighted_layers

FLAT = {"name": "resnet18", "args": {"width": 8}}
FRESH = Start(State(0, 0, 0, GlobalBatch(1, 4), Stream.start(1)))


def config(model: dict, **keys: object) -> Config:
    data = {"train_filelist": Path("unused"), "crop_image_size": (32, 32)}
    return Config.model_validate({"data": data, "model": {**model, **keys}})


def drawn(model: keras.Model, seed: int) -> keras.Model:
    """Gives a model weights that no initializer gives."""
    draw = np.random.default_rng(seed)
    model.set_weights([draw.uniform(0.1, 0.2, weight.shape).astype(np.float32) for weight in model.weights])
    return model


def assert_equal(layer: keras.Layer, other: keras.Layer) -> None:
    for one, another in zip(layer.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(one, another)


@pytest.mark.parametrize(
    ("model", "name", "classes"),
    [
        (TINY, "model.keras", 3),
        (TINY, "model.keras", 5),
        (TINY, "model.weights.h5", 3),
        (TINY, "model.weights.h5", 5),
        (FLAT, "model.keras", 5),
    ],
)
def test_a_file_gives_all_weights_or_all_but_those_of_the_last_layer(
    model: dict, name: str, classes: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tfpipe")
    given = drawn(build_model(config(model), 3), 0)
    given.save(tmp_path / name) if name == "model.keras" else given.save_weights(tmp_path / name)
    network = drawn(build_model(config(model), classes), 1)
    before = weighted_layers(network)[-1].get_weights()
    load_weights(network, config(model, weights=tmp_path / name))
    *layers, last = zip(weighted_layers(network), weighted_layers(given), strict=True)
    for ours, theirs in layers:
        assert_equal(ours, theirs)
    if classes == 3:
        assert_equal(*last)
        assert "untrained" not in caplog.text
    else:
        for kept, weight in zip(before, last[0].get_weights(), strict=True):
            np.testing.assert_array_equal(kept, weight)
        assert f"{last[0].name} [({len(before[0])}, 5), (5,)] starts untrained" in caplog.text


def test_a_file_of_the_model_within_is_taken_too(tmp_path: Path) -> None:
    """It is the model that Keras alone gives: without the layers that prepare the pixels."""
    network = build_model(config(TINY), 3)
    (within,) = (layer for layer in network.layers if isinstance(layer, keras.Model))
    drawn(within, 0).save(tmp_path / "plain.keras")
    other = build_model(config(TINY), 3)
    load_weights(other, config(TINY, weights=tmp_path / "plain.keras"))
    for ours, theirs in zip(weighted_layers(other), weighted_layers(within), strict=True):
        assert_equal(ours, theirs)


@pytest.mark.parametrize("spoilt", ["other", "missing", "text", "suffix"])
def test_a_file_that_does_not_fit_is_named(spoilt: str, tmp_path: Path) -> None:
    path = tmp_path / ("x.h5" if spoilt == "suffix" else "x.weights.h5")
    message = f"model.weights: cannot read {path}"
    if spoilt == "other":
        build_model(config({**TINY, "args": {"norm": "group"}}), 3).save_weights(path)
        message = f"model.weights {path} does not fit tiny: 1 of its 3 layers .* e.g. batch_norm.* same model.args"
    elif spoilt == "text":
        path.write_text("no weights")
    elif spoilt == "suffix":
        message = f"model.weights: received {path}; accepted: a .keras or .weights.h5 file"
    with pytest.raises(ConfigError, match=message):
        load_weights(build_model(config(TINY), 3), config(TINY, weights=path))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr(keras.src.backend.config, "_KERAS_DIR", str(tmp_path), raising=False)
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def small(
    input_shape: tuple[int, int, int] | None = None,
    classes: int = 1000,
    weights: str | None = None,
    include_top: bool = True,
    classifier_activation: str | None = "softmax",
    scales: bool = False,
) -> keras.Model:
    """A network as those of keras.applications, which gets its weights as they do.

    If it `scales`, as EfficientNet, it has one more layer with ImageNet's weights, which has no weights.
    """
    x = inputs = keras.Input(input_shape or (16, 16, 3))
    if scales:
        x = keras.layers.Normalization(axis=3)(keras.layers.Rescaling(1 / 255)(x))
        x = keras.layers.Rescaling([2.0, 3.0, 4.0])(x) if weights == "imagenet" else x
    x = keras.layers.BatchNormalization(name="stem")(keras.layers.Conv2D(4, 3)(x))
    if include_top:
        x = keras.layers.Dense(classes, name="predictions")(keras.layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, x)
    if weights == "imagenet":
        name = "small.weights.h5" if include_top else "small_notop.weights.h5"
        model.load_weights(keras.utils.get_file(name, f"https://weights.invalid/{name}", cache_subdir="models"))
    return model


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> dict:
    """The config of a model of keras.applications that is built in no time."""
    monkeypatch.setattr(small, "__module__", keras.applications.ResNet50.__module__)
    monkeypatch.setattr(keras.applications, "Small", small, raising=False)
    return {"name": "Small"}


@pytest.mark.parametrize(
    ("classes", "names"), [(3, r"\S*small_notop\S*"), (1000, r"\S*small\.\S* \(.*\) or \S*small_notop\S*")]
)
def test_weights_of_imagenet_that_cannot_be_downloaded_are_named_with_their_place(
    application: dict, cache: Path, classes: int, names: str
) -> None:
    network = build_model(config(application), classes)
    before = socket.getdefaulttimeout()
    message = rf"Small's are not in Keras' cache {cache}, and .*: put there {names}h5 \(.*\)$"
    with pytest.raises(ConfigError, match=message):
        load_weights(network, config(application, weights="imagenet"))
    assert socket.getdefaulttimeout() == before


def test_weights_of_imagenet_are_downloaded_once(
    application: dict, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, urls = drawn(small(include_top=False), 0), []
    given.save_weights(tmp_path / "served.weights.h5")

    def retrieve(url: str, target: str, _: object) -> None:
        urls.append(url)
        shutil.copy(tmp_path / "served.weights.h5", target)

    monkeypatch.setattr("keras.src.utils.file_utils.urlretrieve", retrieve)
    for _ in range(2):
        network = build_model(config(application), 3)
        load_weights(network, config(application, weights="imagenet"))
        assert_equal(weighted_layers(network)[0], weighted_layers(given)[0])
    assert urls == ["https://weights.invalid/small_notop.weights.h5"] and [*cache.iterdir()]


def test_weights_of_imagenet_are_of_the_applications_only() -> None:
    with pytest.raises(
        ConfigError, match=r"is of the models of keras.applications, model.name is .*:tiny: give a .keras"
    ):
        load_weights(build_model(config(TINY), 3), config(TINY, weights="imagenet"))


@pytest.mark.parametrize(("classes", "top"), [(3, False), (1000, True), (1000, False)])
def test_weights_of_imagenet_are_those_of_the_cache(application: dict, cache: Path, classes: int, top: bool) -> None:
    given = drawn(small(include_top=top), 0)
    given.save_weights(cache / ("small.weights.h5" if top else "small_notop.weights.h5"))
    network = build_model(config(application), classes)
    layers = weighted_layers(network)
    head = layers[-1].get_weights()
    load_weights(network, config(application, weights="imagenet"))
    for ours, theirs in zip(layers, weighted_layers(given), strict=False):
        assert_equal(ours, theirs)
    assert [layer.name for layer in layers[2:]] == ["predictions"]
    assert (layers[-1].get_weights()[0] != head[0]).any() == top


def test_a_network_of_imagenet_computes_as_kerass_and_after_a_resume(application: dict, cache: Path) -> None:
    """A Normalization computes with what it has made of its weights, and Keras has a layer more than the network."""
    drawn(small(include_top=False, scales=True), 0).save_weights(cache / "small_notop.weights.h5")
    how = config({**application, "args": {"scales": True}}, weights="imagenet")
    expected = small((32, 32, 3), weights="imagenet", include_top=False, scales=True)
    pixels = np.random.default_rng(0).uniform(0, 255, (2, 32, 32, 3)).astype(np.float32)
    model = compile_model(how, World(), 3, 10, FRESH)
    weights = [weight.numpy() for weight in [*model.trainable_weights, *model.non_trainable_weights]]
    optimizer = [variable.numpy() for variable in _slots(model)]
    state = replace(FRESH.state, total_steps=1)
    resumed = compile_model(how, World(), 3, 10, Start(state, Checkpoint(state, weights, optimizer)))
    for each in (model, resumed):
        (network,) = [layer for layer in each.layers if isinstance(layer, keras.Model)]
        stem = keras.Model(network.inputs, network.get_layer("stem").output)
        np.testing.assert_allclose(stem(pixels), expected(pixels), rtol=1e-4)


@pytest.mark.parametrize(
    ("frozen", "names"),
    [
        (2, ["conv", "norm"]),
        (-1, ["conv", "norm", "hidden"]),
        (["conv", "hid*"], ["conv", "hidden"]),
        ([], []),
        (None, []),
    ],
)
def test_layers_are_frozen_by_number_or_name(frozen: object, names: list[str]) -> None:
    network = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Rescaling(1.0),
            keras.Sequential([keras.layers.Conv2D(2, 3, name="conv"), keras.layers.BatchNormalization(name="norm")]),
            keras.layers.Flatten(),
            keras.layers.Dense(4, name="hidden"),
            keras.layers.Dense(2, name="last"),
        ]
    )
    freeze(network, frozen)
    assert [layer.name for layer in weighted_layers(network) if not layer.trainable] == names


@pytest.mark.parametrize(
    ("frozen", "message"),
    [
        (0, r"model.freeze: received 0; tiny has 3 layers with weights; accepted: 1 to 2 for the first ones"),
        (3, r"model.freeze: received 3"),
        (["conv1_*"], r'no layer with weights is named "conv1_\*"; those of tiny are conv2d\S*, batch_normalization'),
        (["*"], r"leaves no weight of tiny to train"),
    ],
)
def test_a_wrong_freeze_is_refused(frozen: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        freeze(build_model(config(TINY), 3), frozen)


def trained(model: ParallelModel) -> ParallelModel:
    """Trains two steps."""
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (8, 32, 32, 3), np.uint8), draw.integers(0, 3, 8, np.int32)
    for _ in range(2):
        model.train_step((images, labels, None, np.zeros(2, np.float32)))
    return model


def test_frozen_layers_keep_their_weights_and_statistics_bit_for_bit(tmp_path: Path) -> None:
    how = config(TINY, weights=tmp_path / "given.keras", freeze=-1)
    given = drawn(build_model(config(TINY), 3), 0)
    given.save(tmp_path / "given.keras")
    model = trained(compile_model(how, World(), 3, 10, FRESH))
    *layers, last = zip(weighted_layers(model), weighted_layers(given), strict=True)
    for ours, theirs in layers:
        assert_equal(ours, theirs)
    assert (last[0].get_weights()[0] != last[1].get_weights()[0]).any()


def test_ranks_average_statistics_but_not_what_is_frozen() -> None:
    """The mean of three equal numbers may differ from them in the last bit."""
    counts = []

    def average(values: list[tf.Tensor], name: str) -> list[tf.Tensor]:
        counts.append(len(values))
        return [value + 1 for value in values]

    world = World(0, 3, "horovod", collectives=SimpleNamespace(average=average))
    model = build_model(config(TINY), 3)
    before = [weight.numpy() for weight in model.non_trainable_weights]
    assert all((new == old + 1).all() for new, old in zip(averaged_statistics(model, world), before, strict=True))
    assert counts == [2]
    freeze(model, -1)
    before = [weight.numpy() for weight in model.non_trainable_weights]
    for new, old in zip(averaged_statistics(model, world), before, strict=True):
        np.testing.assert_array_equal(new, old)
    assert len(before) == 5 and counts == [2]


def test_a_run_that_continues_takes_no_weights_but_its_own() -> None:
    how = config(TINY, weights=Path("gone.keras"))
    with pytest.raises(ConfigError, match=r"model.weights: cannot read .*gone.keras"):
        compile_model(how, World(), 3, 10, FRESH)
    compile_model(how, World(), 3, 10, Start(replace(FRESH.state, total_steps=1)))


def test_a_run_continues_only_with_the_layers_that_it_has_frozen() -> None:
    contract = {"data.scope": "global", "model.freeze": -1}
    state = State(0, 0, 1, GlobalBatch(1, 4), Stream.start(1), contract)
    check_contract(state, contract, GlobalBatch(1, 4), anyway=False)
    with pytest.raises(
        ConfigError, match=r"model.freeze: -1 then, 2 now.* model.weights set to this run's model.keras"
    ):
        check_contract(state, {**contract, "model.freeze": 2}, GlobalBatch(1, 4), anyway=True)


def test_a_server_that_does_not_answer_ends_the_wait_and_no_other_connection_has_that_limit(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, _connections_within(0.05):
        url = f"http://127.0.0.1:{server.getsockname()[1]}/weights"
        with pytest.raises(TimeoutError):
            request.urlretrieve(url, tmp_path / "weights")
        assert socket.getdefaulttimeout() is None
