"""The consumers of a Loader's batches, and how they can end: `python -m tests.support.consumers CONFIG NAME...`.

Prints a JSON object: for each cell "CONSUMER, SPLIT, ENDING" "exact" if exactly the right samples were used, each once,
and the state counts them; otherwise what was seen and counted. Samples are told apart by their pixels.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tfpipe
from tfpipe.data.sources.registry import load_split

MODULUS = 1009
# Steps of a training epoch, where the consumer decides.
STEPS = 6


def keys_of(images: Any) -> list[int]:
    """A number of each crop, from its pixels, in whatever order the channels are."""
    pixels = np.asarray(images)
    return (pixels.reshape(len(pixels), -1).astype(np.int64).sum(1) % MODULUS).tolist()


class Consumer:
    """A way to take batches; `consume` returns the keys of the samples that it has used."""

    def __init__(self, config: tfpipe.Config, split: str, data: Any = None, **options: Any) -> None:
        """Makes the loader, with `options` of its own."""
        self.config, self.split, self.options = config, split, {"data": data, **options}
        self.loader = self.make()

    def make(self) -> tfpipe.Loader:
        return tfpipe.Loader(self.config, self.split, **self.options)

    def again(self) -> "Consumer":
        """Another one, at the state of this one, which went through JSON."""
        other = type(self)(self.config, self.split, **self.options)
        other.load(json.loads(json.dumps(self.state())))
        return other

    def batches(self) -> Iterator[Any]:
        return iter(self.loader)

    def consume(self, count: int | None, failing: bool = False) -> list[int]:
        """Uses `count` batches, None: all of a pass or an epoch; then leaves, by an exception if `failing`."""
        keys: list[int] = []
        count = STEPS if count is None and self.split == "train" else count
        try:
            for number, (images, labels) in enumerate(self.batches(), 1):
                # A sharded test pass is filled up with labels of -1.
                keys += [key for key, label in zip(keys_of(images), np.asarray(labels), strict=True) if label >= 0]
                if failing and number == count:
                    raise KeyError("early")
                if number == count:
                    break
        except KeyError:
            pass
        return keys

    def state(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)

    def crops(self) -> int:
        return self.loader.state_dict()["crops"]


class Epochs(Consumer):
    def batches(self) -> Iterator[Any]:
        return self.loader.epoch()


class Torch(Consumer):
    def make(self) -> tfpipe.Loader:
        return tfpipe.torch.Loader(self.config, self.split, **self.options)

    def batches(self) -> Iterator[Any]:
        from torch.utils.data import DataLoader

        return iter(DataLoader(self.loader, batch_size=None, num_workers=0))


class Stateful(Torch):
    """torchdata's StatefulDataLoader, which has the state."""

    def make(self) -> tfpipe.Loader:
        from torchdata.stateful_dataloader import StatefulDataLoader

        loader = super().make()
        self.outer = StatefulDataLoader(loader, batch_size=None, num_workers=0)
        return loader

    def batches(self) -> Iterator[Any]:
        return iter(self.outer)

    def state(self) -> dict[str, Any]:
        return self.outer.state_dict()

    def load(self, state: dict[str, Any]) -> None:
        self.outer.load_state_dict(state)


class Jax(Consumer):
    def make(self) -> tfpipe.Loader:
        return tfpipe.jax.Loader(self.config, self.split, **self.options)


class Sharded(Consumer):
    """tfpipe.jax.Loader with a sharding."""

    def make(self) -> tfpipe.Loader:
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        sharding = NamedSharding(Mesh(jax.devices(), ("data",)), PartitionSpec("data"))
        return tfpipe.jax.Loader(self.config, self.split, sharding=sharding, **self.options)


class Lightning(Torch):
    """Lightning's fit and validate."""

    def consume(self, count: int | None, failing: bool = False) -> list[int]:
        keys: list[int] = []

        def use(batch: Any, number: int) -> None:
            keys.extend(keys_of(batch[0]))
            if failing and number + 1 == count:
                raise KeyError("early")

        with suppress(KeyError):
            self.run(use, STEPS if count is None and self.split == "train" else count)
        return keys

    def run(self, use: Callable[[Any, int], None], count: int | None) -> None:
        """Calls `use` with each batch, of `count`, and its number in the epoch."""
        module = lightning_module(use, use)
        if self.split == "train":
            trainer(max_steps=count).fit(module, self.loader)
        else:
            trainer(limit_val_batches=count).validate(module, self.loader, verbose=False)


class LightningEpochs(Lightning):
    """Lightning's fit with its default checkpoints, one at each epoch's end, and KeepState; an epoch is a `consume`."""

    checkpoint: str | None = None

    def loaded(self) -> Any:
        return self.loader

    def again(self) -> "Consumer":
        """Another one, which resumes from the last checkpoint."""
        other = type(self)(self.config, self.split, **self.options)
        (path,) = Path(self.folder.name).glob("**/*.ckpt")
        other.checkpoint = str(path)
        return other

    def run(self, use: Callable[[Any, int], None], count: int | None) -> None:
        self.folder = tempfile.TemporaryDirectory()
        done = 0 if self.checkpoint is None else torch_load(self.checkpoint)["epoch"] + 1
        how = {"max_epochs": done + 1, "limit_train_batches": count, "enable_checkpointing": True}
        kept = [tfpipe.lightning.KeepState(self.loader)]
        fitting = trainer(**how, callbacks=kept, default_root_dir=self.folder.name)
        fitting.fit(lightning_module(use, use), self.loaded(), ckpt_path=self.checkpoint)
        self.checkpoint = None


class LightningStateful(LightningEpochs):
    """The same of torchdata's StatefulDataLoader, whose state Lightning does not restore there either."""

    def loaded(self) -> Any:
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(self.loader, batch_size=None, num_workers=0)


def torch_load(path: str) -> Any:
    import torch

    return torch.load(path, weights_only=True)


class LightningValidation(Lightning):
    """The validations in Lightning's fit, after its sanity check: the samples of each of two epochs."""

    def consume(self, count: int | None, failing: bool = False) -> list[int]:
        passes: list[list[int]] = []

        def use(batch: Any, number: int) -> None:
            if number == 0:
                passes.append([])
            passes[-1] += keys_of(batch[0])

        how = {"max_epochs": 2, "limit_train_batches": 2, "num_sanity_val_steps": 2, "limit_val_batches": count}
        with tfpipe.torch.Loader(self.config) as train:
            trainer(**how).fit(lightning_module(lambda *_: None, use), train, val_dataloaders=self.loader)
        _, first, second = passes
        assert first == second, (len(first), len(second))
        return first


def trainer(**how: Any) -> Any:
    """Lightning's Trainer, which writes and prints nothing."""
    import lightning

    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False)
    return lightning.Trainer(**{**quiet, "accelerator": "cpu", "devices": 1, **how})


def lightning_module(train: Callable[[Any, int], None], validate: Callable[[Any, int], None]) -> Any:
    """A module that calls a function with each batch and its number."""
    import lightning
    import torch

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def training_step(self, batch: Any, number: int) -> Any:
            train(batch, number)
            return self.weight * 1.0

        def validation_step(self, batch: Any, number: int) -> None:
            validate(batch, number)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()


def keras_model(channels_last: tuple[int, ...], steps_per_execution: int = 1) -> Any:
    """A model whose output is the key of each crop, and that counts and adds the keys that it has seen."""
    import keras

    class Key(keras.layers.Layer):
        def call(self, pixels: Any) -> Any:
            total = keras.ops.sum(keras.ops.cast(pixels, "float32"), axis=(1, 2, 3))
            return keras.ops.expand_dims(keras.ops.mod(total, float(MODULUS)), 1)

    class Seen(keras.metrics.Metric):
        def __init__(self, weigh: bool, name: str) -> None:
            super().__init__(name=name)
            self.weigh, self.total = weigh, self.add_weight(shape=(), initializer="zeros", name="total")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            values = keras.ops.stop_gradient(y_pred) if self.weigh else keras.ops.ones_like(y_pred)
            self.total.assign_add(keras.ops.sum(values))

        def result(self) -> Any:
            return keras.ops.convert_to_tensor(self.total)

    class Same(keras.layers.Layer):
        """Something to train that changes nothing."""

        def build(self, shape: Any) -> None:
            self.weight = self.add_weight(shape=(), initializer="zeros")

        def call(self, values: Any) -> Any:
            return values + 0.0 * self.weight

    pixels = keras.Input(channels_last, dtype="uint8")
    model = keras.Model(pixels, Same()(Key()(pixels)))
    metrics = [Seen(False, "seen"), Seen(True, "keys")]
    model.compile("sgd", "mse", metrics=metrics, steps_per_execution=steps_per_execution, jit_compile=False)
    return model


class Keras(Consumer):
    """The common part of the methods of Keras: samples as their number and the sum of their keys."""

    per_call = 1

    def __init__(self, config: tfpipe.Config, split: str, data: Any) -> None:
        super().__init__(config, split, data)
        self.build()
        self.commit = tfpipe.keras.Commit(self.loader)

    def build(self) -> None:
        """Makes the model: after an exception in a call, Keras with JAX has taken its variables away."""
        data = self.config.data
        self.model = keras_model((*data.crop_image_size, data.num_channels), self.per_call)

    def leaves(self, count: int | None, failing: bool) -> list[Any]:
        """The callbacks; one of them raises after `count` batches if `failing`."""
        import keras

        class Leave(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if failing and batch + 1 == count:
                    raise KeyError("early")

            on_test_batch_end = on_predict_batch_end = on_train_batch_end

        return [self.commit, Leave()]


class Fit(Keras):
    def consume(self, count: int | None, failing: bool = False) -> Any:
        import keras

        class Watch(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                seen.update(self.model.get_metrics_result())

        seen: dict[str, Any] = {}
        callbacks = [Watch(), *self.leaves(count, failing)]
        steps = STEPS if count is None or failing else count
        try:
            self.model.fit(self.loader.dataset(), steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=callbacks)
        except KeyError:
            self.build()
        return [int(seen["seen"]), int(seen["keys"])]


class FitByTwo(Fit):
    per_call = 2


class Evaluate(Keras):
    def consume(self, count: int | None, failing: bool = False) -> Any:
        how = {"steps": None if failing else count, "verbose": 0, "callbacks": self.leaves(count, failing)}
        try:
            return self.call(self.loader.dataset(), **how)
        except KeyError:
            self.build()
            return None

    def call(self, dataset: Any, **how: Any) -> list[int]:
        seen = self.model.evaluate(dataset, return_dict=True, **how)
        return [int(seen["seen"]), int(seen["keys"])]


class EvaluateByTwo(Evaluate):
    per_call = 2


class Predict(Evaluate):
    def call(self, dataset: Any, **how: Any) -> list[int]:
        keys = self.model.predict(dataset, **how)
        return [len(keys), int(keys.sum())]


class Validation(Keras):
    """validation_data of Keras' fit: its samples in each of two epochs."""

    def __init__(self, config: tfpipe.Config, split: str, data: Any) -> None:
        Consumer.__init__(self, config, split, data)
        self.build()

    def consume(self, count: int | None, failing: bool = False) -> Any:
        how = {"steps_per_epoch": 2, "epochs": 2, "shuffle": False, "verbose": 0, "validation_steps": count}
        with tfpipe.Loader(self.config) as train:
            history = self.model.fit(train.dataset(), validation_data=self.loader.dataset(), **how).history
        assert len({*history["val_seen"]}) == len({*history["val_keys"]}) == 1, history
        return [int(history["val_seen"][0]), int(history["val_keys"][0])]


LOOPS: dict[str, type[Consumer]] = {
    "for": Consumer,
    "epoch": Epochs,
    "DataLoader": Torch,
    "StatefulDataLoader": Stateful,
    "Lightning": Lightning,
    "JAX": Jax,
    "JAX, sharded": Sharded,
}
LOOPS_OF_TRAIN: dict[str, type[Consumer]] = {
    "Lightning, checkpoints of epochs": LightningEpochs,
    "Lightning, StatefulDataLoader, checkpoints of epochs": LightningStateful,
}
LOOPS_OF_TEST: dict[str, type[Consumer]] = {"Lightning, validations of fit": LightningValidation}
KERAS: dict[str, dict[str, type[Consumer]]] = {
    "train": {"fit": Fit, "fit, two steps a call": FitByTwo},
    "test": {
        "evaluate": Evaluate,
        "evaluate, two steps a call": EvaluateByTwo,
        "predict": Predict,
        "validation_data": Validation,
    },
}


def keys_by_batch(config: tfpipe.Config, split: str) -> list[list[int]]:
    """The keys of a test pass, or of two training epochs, in batches."""
    dataset = tfpipe.build_dataset(config, split)
    return [keys_of(images.numpy()) for images, _ in islice(dataset, None if split == "test" else 4 * STEPS)]


class Make(NamedTuple):
    kind: type[Consumer]
    config: tfpipe.Config
    split: str
    data: Any

    @property
    def counts(self) -> bool:
        """Whether the state counts what was used: the validations of a fit are whole passes, and are not committed."""
        return self.kind not in (Validation, LightningValidation)

    def __call__(self) -> Consumer:
        return self.kind(self.config, self.split, self.data)


class Cell:
    """Collects what a cell has seen and counted."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def seen(self, keys: Any, batches: list[list[int]]) -> None:
        """The samples used must be those of `batches`; None: the consumer does not tell."""
        flat = [key for batch in batches for key in batch]
        expected = flat if len(keys or ()) != 2 or len(flat) == 2 else [len(flat), sum(flat)]
        if keys is not None and keys != expected:
            self.wrong.append(f"saw {len(keys)}: {keys[:3]}, expected {len(expected)}: {expected[:3]}")

    def counted(self, consumer: Consumer, batches: list[list[int]]) -> None:
        crops, expected = consumer.crops(), sum(map(len, batches))
        if crops != expected:
            self.wrong.append(f"counted {crops}, expected {expected}")


def of_test(make: "Make", whole: list[list[int]]) -> Iterator[tuple[str, Callable[[Cell], None]]]:
    """Yields the endings of passes over test data: each later pass must be a whole one."""

    def then_whole(cell: Cell, consumer: Consumer) -> None:
        cell.seen(consumer.consume(None), whole)
        if make.counts:
            cell.counted(consumer, whole)

    def partly(count: int, failing: bool = False) -> Callable[[Cell], None]:
        def run(cell: Cell) -> None:
            consumer = make()
            cell.seen(consumer.consume(count, failing), whole[:count])
            if make.counts:
                cell.counted(consumer, whole[:count])
            then_whole(cell, consumer)

        return run

    def twice(cell: Cell) -> None:
        consumer = make()
        then_whole(cell, consumer)
        then_whole(cell, consumer)

    def at_the_end(cell: Cell) -> None:
        consumer = make()
        consumer.consume(None)
        then_whole(cell, consumer.again())

    def resume(cell: Cell) -> None:
        consumer = make()
        consumer.consume(2)
        other = consumer.again()
        cell.seen(other.consume(None), whole[2:])
        cell.counted(other, whole)
        then_whole(cell, other)

    yield "break", partly(2)
    yield "all batches", partly(len(whole))
    yield "two passes", twice
    yield "exception", partly(2, failing=True)
    yield "state at the end", at_the_end
    if make.counts:
        yield "resume", resume


def of_train(make: "Make", stream: list[list[int]]) -> Iterator[tuple[str, Callable[[Cell], None]]]:
    """Yields the endings of training: what comes next must be the very next batch."""

    def partly(count: int | None, failing: bool = False) -> Callable[[Cell], None]:
        def run(cell: Cell) -> None:
            consumer, done = make(), STEPS if count is None else count
            cell.seen(consumer.consume(count, failing), stream[:done])
            cell.counted(consumer, stream[:done])
            cell.seen(consumer.consume(2), stream[done : done + 2])
            cell.counted(consumer, stream[: done + 2])

        return run

    def resumed(count: int | None) -> Callable[[Cell], None]:
        def run(cell: Cell) -> None:
            consumer, done = make(), STEPS if count is None else count
            consumer.consume(count)
            other = consumer.again()
            cell.seen(other.consume(2), stream[done : done + 2])
            cell.counted(other, stream[: done + 2])

        return run

    yield "break", partly(4)
    yield "all batches", partly(None)
    yield "exception", partly(2, failing=True)
    yield "state at the end", resumed(None)
    yield "resume", resumed(4)


def main(path: str, *names: str) -> dict[str, str]:
    """Runs the cells of some consumers, of Keras' methods if there are none."""
    config, results = tfpipe.load_config(path), {}
    for split, endings in (("train", of_train), ("test", of_test)):
        batches, loaded = keys_by_batch(config, split), load_split(config.data, split, tfpipe.World())
        loops = LOOPS | (LOOPS_OF_TRAIN if split == "train" else LOOPS_OF_TEST)
        consumers = {name: loops[name] for name in names if name in loops} or KERAS[split]
        for name, kind in consumers.items():
            for ending, run in endings(Make(kind, config, split, loaded), batches):
                cell = Cell()
                try:
                    run(cell)
                except Exception as error:  # told by the cell
                    cell.wrong.append(f"{type(error).__name__}: {error}")
                results[f"{name}, {split}, {ending}"] = "; ".join(cell.wrong) or "exact"
    return results


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
