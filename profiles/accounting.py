"""What the accounting of training costs: python profiles/accounting.py -c CONFIG [--set model.args.width=4].

One training, in which turns of `training.interval` steps with it and without it alternate, so that both have the same
machine. With it, an interval is summed up and written in each turn. What both have: the pipeline's clock, some 10
microseconds a batch in a thread of the pipeline, and the watch for stalls, which looks every three seconds.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from tfpipe import World, load_config
from tfpipe.training.checkpointing.start import Start, first_state
from tfpipe.training.devices import configure_devices
from tfpipe.training.loop import compile_model, load_run
from tfpipe.training.monitor.accounting import Accounting
from tfpipe.training.monitor.record import Record
from tfpipe.training.monitor.stalls import StallWatch
from tfpipe.training.run_model import RunModel

# The first pair traces, fills buffers and lets AUTOTUNE find its way.
TO_SKIP = 1


class Turns(keras.callbacks.Callback):
    """Switches the accounting on and off: on, off, off, on, and so on, so that neither comes always first."""

    def __init__(self, accounting: Accounting, plain: Callable[[Iterator[Any]], Any]) -> None:
        super().__init__()
        self.accounting, self.plain = accounting, plain
        self.seconds: dict[bool, list[float]] = {True: [], False: []}
        self.own_s: list[float] = []
        """For each turn with it, the time in the accounting's callbacks."""

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        self.functions = {True: self.model.train_function, False: self.plain}
        self.accounting.set_model(self.model)
        self.accounting.on_train_begin()
        self.accounting.on_epoch_begin(0)
        self._begin(True)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.steps += 1
        if self.accounted:
            started = time.perf_counter()
            self.accounting.on_train_batch_end(batch)
            self.own_s[-1] += time.perf_counter() - started
        if self.steps == self.accounting.interval:
            self.seconds[self.accounted].append(time.perf_counter() - self.started)
            # On, off, off, on: the second of a pair is what the first was not, and the next pair begins with it.
            both = len(self.seconds[True]) == len(self.seconds[False])
            self._begin(self.accounted if both else not self.accounted)

    def _begin(self, accounted: bool) -> None:
        self.accounted, self.steps = accounted, 0
        self.model.train_function = self.functions[accounted]
        if accounted:
            self.own_s.append(0.0)
            self.model.meter.begin_epoch(1)
        self.started = time.perf_counter()


def plain_function(model: RunModel) -> Callable[[Iterator[Any]], Any]:
    """A training function that times nothing."""
    step = tf.function(model.train_step, reduce_retracing=True)

    def train_function(_: Iterator[Any]) -> Any:
        images, labels, weights = (*model.take(), None)[:3]
        return step((images, labels, weights, tf.constant(model.requests, tf.float32)))[0]

    return train_function


def main(args: argparse.Namespace) -> None:
    """Prints both rates, their ratio pair by pair, and the share of the accounting's own calls."""
    config = load_config(args.config, args.set)
    world, interval, batch_size = World(), config.training.interval, config.data.batch_size
    configure_devices(world)
    with tempfile.TemporaryDirectory() as folder:
        loader, _ = load_run(config, world)
        steps = loader.schedule.phase(0).steps
        start = Start(first_state(loader, steps))
        model = compile_model(config, world, loader.data.outputs, steps, start)
        model.train_on(loader)
        record = Record(Path(folder))
        # As Throughput when its warm-up is over.
        throughput = SimpleNamespace(steps=1, images_per_step=batch_size)
        accounting = Accounting(loader, interval, throughput, record)
        turns = Turns(accounting, plain_function(model))
        steps = 2 * (args.pairs + TO_SKIP) * interval
        with StallWatch(loader, record.path):
            steady = tf.data.Dataset.range(1).repeat()
            model.fit(steady, steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=[record, turns])
    seconds = {accounted: turns.seconds[accounted][TO_SKIP:] for accounted in (True, False)}
    for accounted, name in ((True, "with"), (False, "without")):
        rates = [interval * batch_size / each for each in seconds[accounted]]
        print(f"{name}: {statistics.median(rates):.1f} images/s ({min(rates):.1f} to {max(rates):.1f})")
    ratios = [without / with_it for with_it, without in zip(seconds[True], seconds[False], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"with / without: median of {len(ratios)} pairs {middle:.4f} (quartiles {low:.4f} to {high:.4f})")
    own = [part / whole for part, whole in zip(turns.own_s[TO_SKIP:], seconds[True], strict=False)]
    step_ms = 1000 * statistics.median(seconds[False]) / interval
    print(f"its callbacks: {100 * statistics.median(own):.2f} % of the time, at {step_ms:.1f} ms a step")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--pairs", type=int, default=30)
    main(parser.parse_args())
