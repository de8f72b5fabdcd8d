"""Callbacks that measure, record and display the metrics of a run, and trace some of its steps."""

import errno
import logging
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import tensorflow as tf

from tfpipe.collectives.launch import find_launch
from tfpipe.data.order.schedule import Schedule
from tfpipe.data.runtime.op_errors import as_os_error
from tfpipe.data.runtime.recording import TracedBatch
from tfpipe.data.runtime.tracing import Tracer
from tfpipe.errors import counted
from tfpipe.training.monitor.metrics import METRICS, append
from tfpipe.training.run_model import RunCallback
from tfpipe.util.console import figure
from tfpipe.util.process import drop_output

# In the first steps of a run, graphs are traced, buffers filled, and AUTOTUNE adapts.
WARMUP_STEPS = 5

Logs = dict[str, Any]
logger = logging.getLogger(__name__)


class Throughput(RunCallback):
    """Adds images_per_second over all ranks, input_wait_fraction and seconds; leaves out a run's first steps."""

    def __init__(self, schedule: Schedule, ranks: int, steps: int) -> None:
        """Takes the batch sizes by epoch, of each of the ranks, and the steps of the first epoch that is left."""
        super().__init__()
        self.schedule, self.ranks = schedule, ranks
        self.to_skip = min(WARMUP_STEPS, steps - 1)
        self.steps = 0

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self.epoch_start = self.model.meter.clock()
        self.images_per_step = self.schedule.phase(epoch).batch_size * self.ranks
        self._restart()

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        if self.to_skip > 0:
            self.to_skip -= 1
            self._restart()
        else:
            self.steps += 1

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        logs.update(self.rates(), seconds=self.model.meter.clock() - self.epoch_start)

    def rates(self) -> dict[str, float]:
        """Returns the rates of the current epoch so far; empty before the first step that counts."""
        if self.steps == 0:
            return {}
        elapsed_s = self.model.meter.clock() - self.start
        waited_s = self.model.meter.waited_s - self.waited_before
        return {
            "images_per_second": self.steps * self.images_per_step / elapsed_s,
            "input_wait_fraction": waited_s / elapsed_s,
        }

    def seconds_left(self, steps_left: int) -> float | None:
        """Returns the seconds that `steps_left` steps take at the current rate; None before the first that counts."""
        if self.steps == 0:
            return None
        return steps_left * (self.model.meter.clock() - self.start) / self.steps

    def _restart(self) -> None:
        self.start = self.model.meter.clock()
        self.waited_before = self.model.meter.waited_s
        self.steps = 0


class Record(RunCallback):
    """Writes the logs of each epoch to metrics.jsonl and TensorBoard, and further curves on request; rank 0 only."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__()
        self.path = run_dir / METRICS
        self.logs: Logs = {}
        """Those of the last epoch."""
        with as_os_error():
            self.writers = {split: tf.summary.create_file_writer(str(run_dir / split)) for split in ("train", "test")}

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self.logs = dict(logs)
        append(self.path, {"epoch": epoch + 1, "step": int(self.model.optimizer.iterations), **logs})
        self.draw({**logs, "learning_rate": float(self.model.optimizer.learning_rate)})

    def draw(self, scalars: Mapping[str, Any]) -> None:
        """Adds points to TensorBoard's curves, for numbers; test_* go to the writer "test", without the prefix."""
        step = int(self.synced_model.optimizer.iterations)
        # As tf.summary.scalar writes them, which would need TensorBoard installed.
        kind = tf.compat.v1.SummaryMetadata
        scalar = kind(plugin_data=kind.PluginData(plugin_name="scalars"))
        with as_os_error():
            for name, value in scalars.items():
                if isinstance(value, dict | list):
                    continue
                split = "test" if name.startswith("test_") else "train"
                with self.writers[split].as_default():
                    tf.summary.write(name.removeprefix("test_"), tf.cast(value, tf.float32), step, scalar)
            for writer in self.writers.values():
                writer.flush()


class Display(RunCallback):
    """Progress on stdout: a live line per epoch on a terminal, else a line every `every` steps; rank 0 only."""

    def __init__(
        self,
        throughput: Throughput,
        epochs: int,
        schedule: Schedule,
        every: int,
        steps_done: int = 0,
        out: TextIO = sys.stdout,
    ) -> None:
        """Takes the rates, the epochs and their steps, steps between lines, and steps done of the first epoch."""
        super().__init__()
        self.throughput, self.epochs, self.schedule, self.every, self.out = throughput, epochs, schedule, every, out
        self.steps_done = steps_done
        # Open MPI gives each rank a pseudo-terminal, whose output may go to a file.
        self.live = out.isatty() and find_launch() is None
        self.last_drawn = 0.0

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        read = self.model.results.read
        if not read:
            return
        # The step whose metrics are known by now: another one's would wait for the device.
        now_s, step = time.monotonic(), self.steps_done + batch + 1 - (self.model.meter.steps - read[-1].step)
        due = now_s - self.last_drawn >= 0.2 if self.live else step % self.every == 0
        if not due:
            return
        self.last_drawn = now_s
        first, end = map(self.schedule.first_step, (self.epoch, self.epochs))
        left_s = self.throughput.seconds_left(end - first - step)
        # The most important parts come first: a narrow terminal cuts off the end.
        parts = [f"epoch {self.epoch + 1}/{self.epochs}  step {step}/{self.schedule.phase(self.epoch).steps}"]
        parts += [] if left_s is None else [f"{clock(left_s)} left"]
        parts += [metrics_line({**logs, **self.throughput.rates()})]
        self._draw("  ".join(parts), end="" if self.live else "\n")

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self.steps_done = 0
        self._draw(f"epoch {epoch + 1}/{self.epochs}  {clock(logs['seconds'])}  {metrics_line(logs)}", end="\n")

    def _draw(self, line: str, end: str) -> None:
        if self.live:
            # A wrapped line could not be overwritten.
            width = shutil.get_terminal_size().columns
            line = f"\r\x1b[2K{line if end else line[: width - 1]}"
        try:
            self.out.write(f"{line}{end}")
            self.out.flush()
        except BrokenPipeError:  # its reader, e.g. `head`, has ended: training has not
            drop_output(self.out.fileno())
        except OSError as error:
            # The terminal was closed: SIGHUP follows, on which the run is saved, or is ignored, as under nohup.
            if error.errno != errno.EIO:
                raise


class Profile(RunCallback):
    """Reports steps to a tracer; comes first, so that a traced step does not include the other callbacks."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer, self.asked = tracer, (tracer.window.first, tracer.window.end - 1)

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        with self.model.meter.leaving_out():  # a trace's start and end take seconds on a busy machine
            self.tracer.begin()

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        meter = self.model.meter
        last, taken_s = meter.last, meter.taken_at_s
        began_s = taken_s - last.wait_s - last.transfer_s
        times_s = (began_s, taken_s - last.delay_s, taken_s, taken_s + last.busy_s, last.reduce_s)
        with meter.leaving_out():
            self.tracer.end(TracedBatch(meter.steps - 1, *times_s, self.model.positions.numpy()))
        if self.tracer.steps == self.tracer.window.end:
            logger.info("steps %d to %d are traced in %s", *self.asked, self.tracer.folder)

    def on_train_end(self, logs: Logs | None = None) -> None:
        self.tracer.close()
        if self.tracer.steps < self.tracer.window.end:
            message = "--profile asks for the steps %d to %d, but the run has ended after %d"
            logger.warning(message, *self.asked, self.tracer.steps)


def metrics_line(logs: Logs) -> str:
    """Formats loss, accuracies, images/s and input wait of `logs` as one line; leaves out missing ones."""
    forms: dict[str, Callable[[float], str]] = {
        "loss": "loss {:.4f}".format,
        "top1": "top-1 {:.4f}".format,
        "top5": "top-5 {:.4f}".format,
        "images_per_second": lambda rate: f"{figure(rate)} images/s",
        "input_wait_fraction": lambda share: f"{100 * share:.0f} % input wait",
        "test_loss": "| test loss {:.4f}".format,
        "test_top1": "top-1 {:.4f}".format,
        "test_top5": "top-5 {:.4f}".format,
        "test_macro_recall": "macro recall {:.4f}".format,
        "test_crops": lambda count: f"on {counted(count, 'crop')}",
        "test_images": lambda count: f"of {counted(count, 'image')}",
    }
    return "  ".join(form(logs[name]) for name, form in forms.items() if name in logs)


def clock(seconds: float) -> str:
    """Formats seconds as h:mm:ss, or as m:ss below an hour."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
