"""The example loops of docs/examples, started as their first lines say, killed, and resumed."""

import json
import random
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.support.commands import ROOT, WARM, Finished, Processes, finish, start, start_ranks
from tests.support.runs import steps, wait_for

BATCH = 4
TORCHRUN = (*WARM, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")


def crops_of_tensorflow(run: Path) -> int:
    """Returns the crops that a run's last checkpoint counts as trained, 0 without one."""
    import tensorflow as tf

    if (latest := tf.train.latest_checkpoint(str(run / "checkpoints"))) is None:
        return 0
    state = tf.train.load_checkpoint(latest).get_tensor("loader/.ATTRIBUTES/VARIABLE_VALUE")
    return json.loads(state)["crops"]


def crops_of_torch(run: Path) -> int:
    """Returns the crops that a run's last checkpoint counts as trained, 0 without one."""
    import torch

    saved = run / "checkpoint.pt"
    return torch.load(saved)["loader"]["crops"] if saved.exists() else 0


def crops_of_jax(run: Path) -> int:
    """Returns the crops that a run's last checkpoint counts as trained, 0 without one."""
    return max((int(path.name) for path in (run / "checkpoints").glob("*") if path.name.isdecimal()), default=0)


class Loop(NamedTuple):
    name: str
    sizes: tuple[int, int, int]
    """Ranks before the first kill, before the second, and to the end."""
    crops: Callable[[Path], int]

    def start(self, size: int, config: Path, run: Path, *options: str, **environ: str) -> subprocess.Popen[str]:
        """Starts the loop on `size` ranks, with a checkpoint every 2 steps."""
        script = ROOT / f"docs/examples/loop_{self.name}.py"
        words = (*WARM, script, "-c", config, "-o", run, "--every", "2", *options)
        if self.name == "torch":
            return start(*TORCHRUN, "--nproc-per-node", str(size), "--no-python", *words, **environ)
        if self.name == "jax" and size == 1:
            return start(*words, XLA_FLAGS="--xla_force_host_platform_device_count=2", **environ)
        return start_ranks(size, *words, *(["--processes"] if self.name == "jax" else []), **environ)

    def run(self, config: Path, run: Path, *options: str) -> Finished:
        """Runs the loop on its usual number of ranks to its end."""
        return finish(self.start(self.sizes[0], config, run, *options))

    def kill(self, size: int, config: Path, run: Path, step: int) -> Counter[tuple[int, int]]:
        """Kills a rank once the loop has done `step` steps; returns the crops that the last checkpoint counts."""
        ranks = Processes(run.with_name("pids"))
        process = self.start(size, config, run, **ranks.environ)
        wait_for(lambda: steps(run) >= step, process)
        ranks.signal(signal.SIGKILL, random.randrange(size))
        assert finish(process).code != 0
        wait_for(lambda: not ranks.running())
        return self.counted(size, run)

    def counted(self, size: int, run: Path) -> Counter[tuple[int, int]]:
        """Returns (position, crop) of what the last run has trained before its last checkpoint; removes its logs."""
        done = self.crops(run) // (BATCH * size)
        seen: Counter[tuple[int, int]] = Counter()
        for path in run.glob("positions-*.csv"):
            # A line that the kill has cut short is of no checkpoint.
            rows = re.findall(r"(?m)^(\d+),(\d+),(\d+)$", path.read_text())
            seen.update((int(position), int(crop)) for step, position, crop in rows if int(step) <= done)
            path.unlink()
        return seen


LOOPS = (
    Loop("tensorflow", (2, 1, 2), crops_of_tensorflow),
    Loop("torch", (2, 2, 3), crops_of_torch),
    Loop("jax", (1, 2, 1), crops_of_jax),
)
