"""The search: tries changes in turns against the setting at hand, and keeps those that win beyond chance.

No change touches a pixel or the order. They are grouped in moves, of which at most one change is kept.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import median
from typing import Any, NamedTuple

from tfpipe.config import DataConfig
from tfpipe.data.runtime.parallelism import READS, thread_budget
from tfpipe.distributed import World

READ_LADDER = (16, 32, READS, 2 * READS, 4 * READS)
REQUEST_LADDER = (16, 64, 128, 256)
PREFETCHED = (2, 8)
FRACTIONS = (0.25, 0.5, 0.75, 1.0)

# Defaults of the keys that tune may change, as --set takes them.
DEFAULTS = {
    "data.num_parallel_readers": "auto",
    "data.parallel.read": "auto",
    "data.parallel.decode": "auto",
    "data.prefetch_buffer_size": "auto",
    "data.threads": "null",
}

TURNS, LAST_TURNS = 3, 5
# Turns more for the best change, against the setting at hand alone: rates of a second differ by a tenth between turns.
MORE_TURNS = 4
# A change is kept if it gains at least this much, and in this share of the turns anything.
GAIN, OFTEN = 0.03, 0.8
# A change that gains this much in each turn needs no more of them.
CLEAR = 0.3
# A candidate whose median ratio is below this leaves the race.
HOPELESS = 0.9
# The first candidate whose ratio is this close to the best is kept.
AS_GOOD = 0.02

Setting = tuple[tuple[str, str], ...]
"""Overrides of the config, each a key and its value as --set takes them."""
Race = Callable[[Sequence[Setting]], list[float]]
"""One turn: (settings) -> the rate of each, measured one after the other."""


class Move(NamedTuple):
    """Changes of which at most one is kept."""

    name: str
    candidates: tuple[Setting, ...]


def put(setting: Setting, changes: Setting) -> Setting:
    """Returns a setting with changes on top of it."""
    return tuple({**dict(setting), **dict(changes)}.items())


def moves(data: DataConfig, world: World, *, loose: bool, remote: bool) -> Iterator[Move]:
    """Yields the moves for the pipeline alone, those that usually gain most first.

    `loose`: the data is images, not packed crops; `remote`: they have URLs.
    """
    values = {key: attrgetter(key.removeprefix("data."))(data) for key in DEFAULTS}
    away = tuple((key, default) for key, default in DEFAULTS.items() if values[key] not in (None, "auto"))
    if away:
        yield Move("defaults", (away,))
    default = {"threads": None, "cpu_fraction": 1.0, "num_parallel_readers": "auto"}
    threads = thread_budget(data.model_copy(update=default), world)
    if data.service is None and loose:
        if remote:
            yield _ladder("data.remote.concurrency", REQUEST_LADDER)
        else:
            yield _ladder("data.parallel.read", READ_LADDER)
        yield _ladder("data.parallel.decode", (*((1,) if threads > 1 else ()), "autotune"))
        yield _ladder("data.threads", (2 * threads,))
    yield _ladder("data.prefetch_buffer_size", PREFETCHED)


def fractions(data: DataConfig, world: World) -> Move:
    """Returns the shares of the CPUs that differ in their number of threads, without the one in use.

    `data.threads` overrides a share, so it is unset.
    """
    cpus = world.threads or len(os.sched_getaffinity(0))
    seen, values = {thread_budget(data, world)}, []
    for fraction in FRACTIONS:
        threads = max(1, round(fraction * cpus))
        if threads not in seen:
            seen.add(threads)
            values.append(fraction)
    unset = () if data.threads is None else (("data.threads", "null"),)
    return Move("data.cpu_fraction", tuple((*unset, ("data.cpu_fraction", f"{value:g}")) for value in values))


def _ladder(key: str, values: tuple[Any, ...]) -> Move:
    return Move(key, tuple(((key, str(value)),) for value in values))


class Trial(NamedTuple):
    """A candidate against the setting at hand."""

    change: Setting
    ratios: list[float]  # of its rate to that of the setting at hand, turn by turn
    kept: bool

    @property
    def ratio(self) -> float:
        """Median ratio."""
        return median(self.ratios)


@dataclass
class Search:
    """The search so far."""

    race: Race
    has_time: Callable[[int], bool]  # (number of measurements) -> whether there is time for them
    setting: Setting = ()  # overrides of the keys changed so far
    trials: list[tuple[str, list[Trial]]] = field(default_factory=list)
    """Trials of each move, by the move's name, in the order made."""
    in_time: bool = True  # false if a move was left out since there was no time

    def climb(self, moves: Iterable[Move]) -> bool:
        """Tries moves; returns whether one was kept."""
        kept = [self._try(move) for move in moves]
        return any(kept)

    def _try(self, move: Move) -> bool:
        candidates = [change for change in move.candidates if put(self.setting, change) != self.setting]
        if not candidates:
            return False
        if not self.has_time(TURNS * (len(candidates) + 1) + 2 * MORE_TURNS):
            self.in_time = False
            return False
        trials = contest(self.race, self.setting, candidates, TURNS)
        self.trials.append((move.name, trials))
        for trial in trials:
            if trial.kept:
                self.setting = put(self.setting, trial.change)
        return any(trial.kept for trial in trials)


def contest(race: Race, setting: Setting, changes: Sequence[Setting], turns: int) -> list[Trial]:
    """Races the changes against the setting; at most one is kept: the first that is as good as the best.

    A candidate that is hopeless leaves the race early; the best one races alone for MORE_TURNS.
    """
    ratios: dict[Setting, list[float]] = {change: [] for change in changes}
    candidates = list(changes)
    for turn in range(turns):
        _race(race, setting, candidates, ratios, backwards=turn % 2 == 1)
        candidates = [change for change in candidates if median(ratios[change]) >= HOPELESS]
    best = max((median(ratios[change]) for change in candidates), default=0.0)
    as_good = [change for change in candidates if median(ratios[change]) >= max(1 + GAIN, (1 - AS_GOOD) * best)][:1]
    for turn in range(MORE_TURNS):
        unclear = [change for change in as_good if min(ratios[change]) < 1 + CLEAR]
        _race(race, setting, unclear, ratios, backwards=turn % 2 == 1)
    return [Trial(change, ratios[change], change in as_good and wins(ratios[change])) for change in changes]


def _race(
    race: Race, setting: Setting, changes: Sequence[Setting], ratios: dict[Setting, list[float]], backwards: bool
) -> None:
    """Adds a turn of the changes, if there are any, to their ratios."""
    if not changes:
        return
    order = [setting, *(put(setting, change) for change in changes)]
    rates = race(order[::-1])[::-1] if backwards else race(order)
    for change, rate in zip(changes, rates[1:], strict=True):
        ratios[change].append(rate / rates[0])


def wins(ratios: Sequence[float]) -> bool:
    """Returns whether the gain is large enough, and not one turn's alone."""
    return median(ratios) >= 1 + GAIN and sum(ratio > 1 for ratio in ratios) >= OFTEN * len(ratios)
