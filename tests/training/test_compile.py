"""Optimizer, learning rate and loss against their definitions."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tfpipe.config import Config
from tfpipe.errors import ConfigError
from tfpipe.training.compile import build_loss, build_optimizer, check_over_ranks, check_rate_setters


def config(**sections: Any) -> Config:
    return Config.model_validate({"data": {"train_filelist": Path("unused")}, **sections})


def rates(size: int, at: list[int], **sections: Any) -> list[float]:
    optimizer = build_optimizer(config(**sections), size, steps_per_epoch=10)
    rate = optimizer._learning_rate
    return [float(rate(step)) if callable(rate) else float(rate) for step in at]


SGD = {"name": "SGD", "args": {"learning_rate": 0.1}}


def test_the_rate_is_constant_unless_scheduled_and_keras_own_unless_given() -> None:
    assert rates(4, [0, 99], optimizer=SGD) == pytest.approx([0.1, 0.1])
    assert rates(1, [0], optimizer={"name": "Adam"}) == pytest.approx([0.001])
    assert rates(1, [0], optimizer={"name": "Adam", "learning_rate": 0.02}) == pytest.approx([0.02])


def test_goyals_warm_up_goes_from_the_one_rank_rate_to_the_scaled_one() -> None:
    schedule = {"scale_by_ranks": True, "warmup_epochs": 2}
    assert rates(8, [0, 10, 20, 500], optimizer=SGD, lr_schedule=schedule) == pytest.approx([0.1, 0.45, 0.8, 0.8])
    assert rates(8, [0, 9], optimizer=SGD, lr_schedule={"scale_by_ranks": True}) == pytest.approx([0.8, 0.8])
    assert rates(1, [0, 10, 20], optimizer=SGD, lr_schedule=schedule) == pytest.approx([0, 0.05, 0.1])


def test_a_warm_up_may_end_within_an_epoch() -> None:
    half, longer = {"warmup_epochs": 0.5}, {"warmup_epochs": 2.5}
    assert rates(1, [0, 1, 5, 9], optimizer=SGD, lr_schedule=half) == pytest.approx([0, 0.02, 0.1, 0.1])
    assert rates(1, [5, 20, 25], optimizer=SGD, lr_schedule=longer) == pytest.approx([0.02, 0.08, 0.1])


def test_a_schedule_takes_the_optimizers_rate_and_the_runs_length() -> None:
    cosine = {"name": "CosineDecay"}
    got = rates(1, [0, 15, 30], optimizer=SGD, lr_schedule=cosine, training={"epochs": 3})
    assert got == pytest.approx([0.1, 0.05, 0])
    warm = {"name": "CosineDecay", "scale_by_ranks": True, "warmup_epochs": 1}
    got = rates(2, [0, 15, 30], optimizer=SGD, lr_schedule=warm, training={"epochs": 3})
    assert got == pytest.approx([0.1, 0.1, 0])
    args = {"initial_learning_rate": 0.001, "decay_steps": 2500, "decay_rate": 0.5, "staircase": False}
    decay = {"name": "ExponentialDecay", "args": args}
    assert rates(1, [0, 2500], optimizer={"name": "Adam"}, lr_schedule=decay) == pytest.approx([0.001, 0.0005])


@pytest.mark.parametrize(
    ("name", "args", "kernel"),
    [("SGD", {"weight_decay": 0.1}, 0.95), ("SGD", {}, 1), ("AdamW", {}, 0.998), ("Muon", {}, 0.998)],
)
def test_weight_decay_leaves_biases_and_normalisation_alone(name: str, args: dict, kernel: float) -> None:
    """Also that of AdamW and Muon, which is 0.004 by default."""
    model = keras.Sequential([keras.layers.Dense(3, name="d"), keras.layers.BatchNormalization(name="n")])
    model.build((None, 2))
    optimizer = build_optimizer(config(optimizer={"name": name, "args": args, "learning_rate": 0.5}), 1, 10)
    for variable in model.trainable_variables:
        variable.assign(np.ones(variable.shape))
    optimizer.build(model.trainable_variables)
    optimizer.apply([np.zeros(each.shape, np.float32) for each in model.trainable_variables], model.trainable_variables)
    after = {each.name: float(np.mean(each)) for each in model.trainable_variables}
    assert after == pytest.approx({"kernel": kernel, "bias": 1, "gamma": 1, "beta": 1})


LOGITS = np.array([[2.0, -1.0, 0.5], [0.1, 0.2, 3.0]], np.float32)
LABELS = np.array([0, 1], np.int32)


def cross_entropy(smoothing: float = 0.0) -> np.ndarray:
    targets = np.eye(3)[LABELS] * (1 - smoothing) + smoothing / 3
    return -(targets * (LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True)))).sum(1)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ({}, cross_entropy()),
        ({"args": {"label_smoothing": 0.1}}, cross_entropy(0.1)),
        ({"name": "CategoricalCrossentropy", "args": {"label_smoothing": 0.3}}, cross_entropy(0.3)),
    ],
)
def test_losses_take_numbers_as_labels(loss: dict, expected: np.ndarray) -> None:
    np.testing.assert_allclose(build_loss(config(loss=loss), 3, reduction="none")(LABELS, LOGITS), expected, rtol=1e-5)
    np.testing.assert_allclose(build_loss(config(loss=loss), 3)(LABELS, LOGITS), expected.mean(), rtol=1e-5)


OWN = "tests.support.own"


@pytest.mark.parametrize("name", ["focal", "Focal"])
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum"])
def test_a_loss_of_the_users_own_is_of_crops_and_as_keras_reduces_it(name: str, reduction: str) -> None:
    args = {"gamma": 3.0, **({} if reduction == "sum_over_batch_size" else {"reduction": reduction})}
    loss = {"name": f"{OWN}:{name}", "args": args}
    crops = (1 - np.exp(-cross_entropy())) ** 3 * cross_entropy()
    reduced = crops.mean() if reduction == "sum_over_batch_size" else crops.sum()
    np.testing.assert_allclose(build_loss(config(loss=loss), 3)(LABELS, LOGITS), reduced, rtol=1e-5)
    # The test pass sums crops whatever is asked for in training.
    np.testing.assert_allclose(build_loss(config(loss=loss), 3, reduction="none")(LABELS, LOGITS), crops, rtol=1e-5)


def test_the_test_pass_has_a_loss_of_crops_even_if_training_has_a_sum() -> None:
    loss = build_loss(config(loss={"args": {"reduction": "sum"}}), 3, reduction="none")
    np.testing.assert_allclose(loss(LABELS, LOGITS), cross_entropy(), rtol=1e-5)


@pytest.mark.parametrize("name", ["SparseCategoricalCrossentropy", f"{OWN}:focal", f"{OWN}:Focal"])
@pytest.mark.parametrize("reduction", [None, "sum_over_batch_size", "mean", "sum", "none", "mean_with_sample_weight"])
def test_a_loss_that_the_mean_over_ranks_would_change_is_refused_on_several(name: str, reduction: str | None) -> None:
    loss = build_loss(config(loss={"name": name, "args": {"reduction": reduction} if reduction else {}}), 3)
    check_over_ranks(loss, 1)
    if reduction in (None, "sum_over_batch_size", "mean"):
        check_over_ranks(loss, 2)
        return
    with pytest.raises(
        ConfigError, match=rf'loss\.args\.reduction "{reduction}" is not exact on several ranks.*; accepted: "sum'
    ):
        check_over_ranks(loss, 2)


def test_a_loss_without_a_class_is_refused_on_several_ranks_whose_crops_of_it_differ() -> None:
    loss = build_loss(config(loss={"args": {"ignore_class": 0}}), 3)
    check_over_ranks(loss, 1)
    with pytest.raises(ConfigError, match=r"loss\.args\.ignore_class 0 is not exact on several ranks"):
        check_over_ranks(loss, 2)


@pytest.mark.parametrize("name", ["ReduceLROnPlateau", "LearningRateScheduler", f"{OWN}:Halving"])
@pytest.mark.parametrize(
    ("size", "ranks", "schedule", "refused"),
    [
        (1, "first", {}, ""),
        (2, "all", {}, ""),
        (1, "all", {"scale_by_ranks": True}, ""),
        (2, "first", {}, r'callbacks\[1\]\.ranks is "first": .* of rank 0 alone, of 2 ranks; accepted: "all"'),
        (1, "all", {"name": "CosineDecay"}, r'callbacks\[1\]\.name: .* lr_schedule {"name":"CosineDecay"} does too'),
        (1, "all", {"warmup_epochs": 1.0}, r"callbacks\[1\]\.name: .* lr_schedule .*warmup_epochs"),
        (2, "all", {"scale_by_ranks": True}, r"callbacks\[1\]\.name: .* lr_schedule .*scale_by_ranks"),
    ],
)
def test_a_callback_that_cannot_set_the_rate_is_refused_with_its_key(
    name: str, size: int, ranks: str, schedule: dict, refused: str
) -> None:
    callbacks = [{"name": "TerminateOnNaN", "ranks": "first"}, {"name": name, "ranks": ranks}]
    chosen = config(callbacks=callbacks, lr_schedule=schedule)
    with pytest.raises(ConfigError, match=refused) if refused else nullcontext():
        check_rate_setters(chosen, size)


def test_an_optimizer_of_the_users_own_gets_the_schedule() -> None:
    own = {"name": f"{OWN}:Signs", "args": {"decay": 0.5}}
    assert rates(1, [0], optimizer=own) == pytest.approx([0.01])
    got = rates(1, [0, 5, 10], optimizer={**own, "learning_rate": 0.2}, lr_schedule={"name": "CosineDecay"})
    assert got == pytest.approx([0.2, 0.1, 0])
    assert build_optimizer(config(optimizer=own), 1, 10).decay == 0.5


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"optimizer": {"name": "Sgd"}}, r'optimizer.name "Sgd" is not known; did you mean SGD\? accepted: .*SGD'),
        ({"optimizer": {"name": "Optimizer"}}, 'optimizer.name "Optimizer" is not known; .*accepted: Adadelta, '),
        ({"optimizer": {"name": "MultiOptimizer"}}, 'optimizer.name "MultiOptimizer" is not known'),
        ({"optimizer": {"name": "LossScaleOptimizer"}}, "accepted: .*Lion, Muon, Nadam, RMSprop, SGD, ScheduleFree"),
        ({"optimizer": {"name": "SGD", "args": {"momentun": 0.9}}}, "optimizer.args: SGD raised .*momentun"),
        ({"optimizer": {"name": f"{OWN}:Nothing"}}, "optimizer.name: .*own.py has no function Nothing"),
        ({"optimizer": {"name": f"{OWN}:no_rate"}}, "optimizer.learning_rate is missing: .*no_rate has no number"),
        ({"optimizer": {"name": f"{OWN}:no_rate", "learning_rate": 1}}, "optimizer.args .* do not fit no_rate"),
        ({"optimizer": {"name": f"{OWN}:any_rate", "learning_rate": 1}}, "gives no keras.optimizers.Optimizer"),
        ({"optimizer": {"name": f"{OWN}:scaled"}}, "scaled gives a LossScaleOptimizer of .*SGD.*: give that one"),
        ({"lr_schedule": {"name": "Cosine"}}, 'lr_schedule.name "Cosine" is not known; .*accepted: .*CosineDecay'),
        ({"lr_schedule": {"name": "CosineDecay", "args": {"x": 1}}}, "lr_schedule.args .* do not fit CosineDecay"),
    ],
)
def test_what_is_not_known_is_named(sections: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_optimizer(config(**sections), 1, 10)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            {"name": "CrossEntropy"},
            'loss.name "CrossEntropy" is not known; .*accepted: .*SparseCategoricalCrossentropy',
        ),
        ({"name": "Hinge"}, 'loss.name "Hinge" takes no logits'),
        ({"name": f"{OWN}:focal", "args": {"alpha": 1}}, "loss.args .*'alpha': 1.* do not fit .*own:focal: .*alpha"),
        ({"name": f"{OWN}:Signs"}, "loss.name: .*own:Signs is no subclass of keras.losses.Loss"),
        ({"args": {"smoothing": 1}}, "loss.args .* do not fit SparseCategoricalCrossentropy"),
    ],
)
def test_an_unknown_loss_is_named(loss: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_loss(config(loss=loss), 3)


def test_a_loss_that_is_none_of_crops_is_named_when_it_is_called() -> None:
    loss = build_loss(config(loss={"name": f"{OWN}:mean_loss"}), 3)
    with pytest.raises(ConfigError, match=r"own:mean_loss must return a loss for each crop.*received shape \[\]"):
        loss(LABELS, LOGITS)
