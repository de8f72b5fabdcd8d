"""Checkpoints: a run's state in one .npz file, written atomically, and the check that a run may continue from it."""

import json
import logging
import math
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfpipe.config import Config
from tfpipe.data.contract import contract_differences, data_contract
from tfpipe.data.order.schedule import Phase
from tfpipe.data.order.stream import Cursor, Stream
from tfpipe.data.split import Split
from tfpipe.errors import ConfigError, counted
from tfpipe.util.atomic_write import atomic_write
from tfpipe.util.json_text import leaves, to_json
from tfpipe.util.retry import retried

logger = logging.getLogger(__name__)

FOLDER = "checkpoints"
CHECKPOINT_FORMAT = 2
# Begin of the names of the metrics' arrays.
METRIC = "metrics."
# Fields of State that a checkpoint's JSON has as they are.
STATE_FIELDS = ("epoch", "step", "total_steps", "batch", "contract", "untested", "epoch_steps", "dropped", "settings")
# Sections and keys that a continuation may change at will: neither training's result nor its course depends on them.
FREE = (
    "training.status",
    "training.interval",
    "training.checkpoint",
    "training.log_positions",
    "training.collectives",
    "model.weights",
)


class GlobalBatch(NamedTuple):
    """The batch of a step, over all ranks."""

    size: int  # number of ranks
    per_rank: int  # crops per rank

    @property
    def crops(self) -> int:
        """Crops over all ranks."""
        return self.size * self.per_rank

    def __str__(self) -> str:
        return f"{counted(self.size, 'rank')} x {self.per_rank}"


@dataclass(frozen=True)
class State:
    """State of a run between two steps, without the weights and the optimizer's slots."""

    epoch: int  # complete epochs
    step: int  # steps done in the current epoch
    total_steps: int  # steps done since the run began
    batch: GlobalBatch
    stream: Stream
    contract: dict[str, Any] = field(default_factory=dict)
    """Values that a continuation must share with the run, by name."""
    untested: dict[str, Any] | None = None
    """Metrics of the last complete epoch, if its test pass is still missing; else None."""
    seeds: np.ndarray = field(default_factory=lambda: np.zeros((0, 0, 2), np.int64))
    """int64 [ranks, generators, 2]: states of the random generators of dropout and the like."""
    metrics: dict[str, np.ndarray] = field(default_factory=dict)
    """float64: the variables of the current epoch's running metrics, e.g. "top1/total", summed over ranks."""
    settings: dict[str, Any] = field(default_factory=dict)  # settings of the model and its training, by key
    epoch_steps: int = 1  # steps of a whole epoch
    dropped: int = 0  # images left out in the current epoch so far, over all ranks

    def for_phase(self, phase: Phase) -> "State":
        """Returns the same state with the batch and the epoch's steps of a phase."""
        return replace(self, batch=self.batch._replace(per_rank=phase.batch_size), epoch_steps=phase.steps)


class Checkpoint(NamedTuple):
    """Content of a checkpoint file."""

    state: State
    weights: list[np.ndarray]
    optimizer: list[np.ndarray]


@retried
def write(run_dir: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Writes a checkpoint and keeps `keep`: this one and those before it.

    Deletes later ones: the run has not continued from them, because they could not be read. A crash at any moment
    leaves the earlier checkpoints intact. Raises OSError if the file cannot be written; the earlier ones remain.
    """
    state = checkpoint.state
    folder = run_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{state.total_steps:09}.npz"
    header = {
        "format": CHECKPOINT_FORMAT,
        **{name: getattr(state, name) for name in STATE_FIELDS},
        "frontiers": state.stream.cursors,
        "rest": state.stream.rest,
    }
    arrays = {"pending": state.stream.pending, "seeds": state.seeds}
    arrays |= {f"{METRIC}{path}": values for path, values in state.metrics.items()}
    for kind in ("weights", "optimizer"):
        arrays |= {f"{kind}.{number:05}": array for number, array in enumerate(getattr(checkpoint, kind))}
    with atomic_write(path, sync=True) as partial, partial.open("wb") as file:
        np.savez(file, about=np.array(to_json(header)), **arrays)  # type: ignore[arg-type]
    paths = checkpoint_paths(run_dir)
    number = paths.index(path)
    for other in (*paths[:number], *paths[number + keep :]):
        other.unlink(missing_ok=True)
    return path


def read_latest(run_dir: Path) -> Checkpoint | None:
    """Returns the last readable checkpoint of a run; None if the run has none.

    Raises ConfigError if the run has checkpoints, but none can be read.
    """
    problems = []
    for path in checkpoint_paths(run_dir):
        try:
            return read(path)
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            problems.append(f"{path}: {error}")
            logger.warning("cannot read the checkpoint %s; trying an earlier one", problems[-1])
    if problems:
        raise ConfigError(
            f"no checkpoint of {run_dir} can be read: {'; '.join(problems)}; start a new run with another --logdir"
        )
    return None


@retried
def read(path: Path) -> Checkpoint:
    """Reads the checkpoint at `path`.

    Raises ValueError, KeyError, OSError or zipfile.BadZipFile if the file is not a checkpoint, or is damaged.
    """
    with np.load(path, allow_pickle=False) as file:
        header = json.loads(str(file["about"]))
        if header["format"] != CHECKPOINT_FORMAT:
            raise ValueError(f"is of format {header['format']}, this version of tfpipe reads {CHECKPOINT_FORMAT}")
        names = sorted(file.files)
        weights, optimizer = (
            [file[name] for name in names if name.startswith(f"{kind}.")] for kind in ("weights", "optimizer")
        )
        stream = Stream(tuple(Cursor(*cursor) for cursor in header["frontiers"]), header["rest"], file["pending"])
        fields = {name: header[name] for name in STATE_FIELDS}
        metrics = {name.removeprefix(METRIC): file[name] for name in file.files if name.startswith(METRIC)}
        fields["batch"] = GlobalBatch(*fields["batch"])
        if fields["untested"]:
            fields["untested"] = {name: math.nan if v is None else v for name, v in fields["untested"].items()}
        return Checkpoint(State(**fields, stream=stream, seeds=file["seeds"], metrics=metrics), weights, optimizer)


def checkpoint_paths(run_dir: Path) -> list[Path]:
    """Returns the paths of the run's checkpoints, the last one first."""
    return sorted((run_dir / FOLDER).glob("step-*.npz"), reverse=True)


def contract_of(config: Config, split: Split) -> dict[str, Any]:
    """Returns the values that a continuation must share with a run, by name; files count by their content."""
    return data_contract(split) | {"training.seed": config.training.seed, "model.freeze": config.model.freeze}


def settings_of(config: Config) -> dict[str, Any]:
    """Returns the settings of the model and its training by key, e.g. "optimizer.args.learning_rate"."""
    return leaves(config.model_dump(mode="json", exclude={"data"}), FREE)


def check_contract(state: State, contract: dict[str, Any], batch: GlobalBatch, anyway: bool) -> None:
    """Checks that a run with `contract` and `batch` may continue from `state`.

    The number of ranks may differ if the batch per rank or the batch over all ranks is the same. Raises ConfigError if
    it may not, for the reasons listed; with `anyway`, only if "shard" forbids the number of ranks.
    """
    different = contract_differences(state.contract, contract)
    if batch.crops != state.batch.crops and batch.per_rank != state.batch.per_rank:
        different.append(f"data.batch_size: {state.batch} then, {batch} now")
    if contract["data.scope"] == "shard" and batch.size != state.batch.size:
        raise ConfigError(
            f'with data.scope "shard" a rank keeps its share of the list, so a run resumes only with as '
            f"many ranks: {state.batch.size} then, {batch.size} now"
        )
    frozen = [values.get("model.freeze") for values in (state.contract, contract)]
    if frozen[0] != frozen[1]:
        # Which weights are trained decides their order in a checkpoint.
        raise ConfigError(
            f"model.freeze: {json.dumps(frozen[0])} then, {json.dumps(frozen[1])} now, so the checkpoint belongs to "
            "another run: to train other layers, start a new run with another --logdir, and model.weights set to this "
            "run's model.keras"
        )
    if different and not anyway:
        raise ConfigError(
            "\n  ".join(["the checkpoint belongs to another run:", *different])
            + "\ncontinue anyway with --resume-anyway, or start a new run with another --logdir"
        )
    for difference in different:
        logger.warning("resumes although this has changed: %s", difference)
    if batch.crops != state.batch.crops:
        logger.warning(
            "a step was %s, it is now %s; the learning rate's schedule continues from the same share of an epoch",
            *(state.batch, batch),
        )


def carried_over(state: State, batch: GlobalBatch, steps: int, fixed: bool) -> tuple[int, float]:
    """Converts the steps of the checkpoint's run to steps of a run with `batch` and epochs of `steps` steps.

    A step counts by its crops or, if epochs have a `fixed` number of steps, by its share of an epoch. Returns the steps
    done in the epoch, at most `steps` - 1, and this run's steps for a step of the checkpoint's run.
    """
    scale = steps / state.epoch_steps if fixed else state.batch.crops / batch.crops
    return min(round(state.step * scale), steps - 1), scale
