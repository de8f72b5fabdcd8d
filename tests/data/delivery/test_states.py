"""Loaders of one to four ranks do what the model says, whatever is done with them, in any order.

Their pipelines are simulated, so that thousands of sequences take minutes; all else is the Loader's own. test_exact.py
has some of it with real pipelines.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.examples import FULL
from tests.support.gathers import loaders_of, on_all
from tests.support.interrupts import interrupted
from tests.support.model import Crop, Model, Rank
from tests.support.simulated import Simulation, lasting, passing, simulate, table
from tfpipe import Config, Loader, TfpipeError, World, make_config
from tfpipe.data.crop_counts import most_crops
from tfpipe.data.sources.registry import load_split
from tfpipe.data.split import Split

BOXES, BAD = [1, 3, 2, 1, 2, 4, 1, 2, 1, 3, 1], {2, 7}
POSITIONS = 400
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "train": ("train", {}),
    "train, an image a crop": ("train", {"crop": "full"}),
    "train, boxes as samples": ("train", {"unit": "box"}),
    "train, weights": ("train", {"class_weights": {"a": 3, "b": 1}}),
    "train, shards": ("train", {"scope": "shard"}),
    "train, phases": ("train", {"batch_size": [[0, 3], [1, 1], [2, 2]]}),
    "train, skip": ("train", {"on_error": "skip", "max_bad_fraction": 0.5}),
    "test": ("test", {}),
    "test, an image a crop": ("test", {"test_crop": "center"}),
    "test, skip": ("test", {"on_error": "skip", "max_bad_fraction": 0.5}),
}


class Kind(NamedTuple):
    """Data that Loaders take, with batches of any size."""

    config: Callable[[int], Config]
    split: Split


def kinds(folder: Path) -> dict[str, Kind]:
    path = table(folder, BOXES, BAD)

    def config(name: str, batch_size: int) -> Config:
        split, keys = KINDS[name]
        crops = {"crop": "boxes", "test_crop": "boxes", "crop_image_size": [16, 16], "batch_size": batch_size}
        source = {"kind": "table", "path": str(path), "test_path": str(path) if split == "test" else None}
        return make_config({"data": {**crops, **keys, "source": source}})

    made = {name: lambda batch_size, name=name: config(name, batch_size) for name in KINDS}
    return {name: Kind(made[name], load_split(made[name](1).data, KINDS[name][0], World())) for name in KINDS}


ranks = st.integers(0, 3)


class Loaders(RuleBasedStateMachine):
    """Loaders beside the model."""

    simulation: Simulation
    kinds: dict[str, Kind]

    @initialize(name=st.sampled_from(sorted(KINDS)), size=st.integers(1, 4), batch_size=st.integers(1, 4))
    def begin(self, name: str, size: int, batch_size: int) -> None:
        self.kind, self.batch_size = self.kinds[name], batch_size
        self.skips = "skip" in name
        self.training, self.is_shard, self.has_phases = name.startswith("train"), "shards" in name, "phases" in name
        self.simulation.bad, self.simulation.errors = BAD if self.skips else set(), {}
        self.open(size)
        self.model = Model([self.rank(rank, self.fresh(rank)) for rank in range(size)])

    def open(self, size: int) -> None:
        config, split = self.kind.config(self.batch_size), "train" if self.training else "test"
        self.loaders = loaders_of(config, size, split, positions=True, data=self.kind.split)
        self.iterators: list[Iterator[Any]] = [*map(iter, self.loaders)]
        self.over, self.ended, self.by_this_pass = [False] * size, [False] * size, False
        self.told: list[set[int]] = [set() for _ in range(size)]
        self.untold: list[list[int]] = [[] for _ in range(size)]

    def fresh(self, rank: int) -> list[Crop]:
        """A rank's positions from the start."""
        end = POSITIONS if self.training else len(BOXES)
        return [(position, 0) for position in range(rank, end, len(self.loaders))]

    def rank(self, number: int, plan: list[Crop], counted: int | None = None) -> Rank:
        split, loader, batch_size = self.kind.split, self.loaders[number], self.batch_size
        items = split.order.items(np.arange(POSITIONS), loader.world) if self.training else np.arange(len(BOXES))
        crops = np.where(np.isin(items, list(self.simulation.bad)), 0, most_crops(split, items))

        def size_at(step: int) -> int:
            return loader.schedule.phase_after(step)[0].batch_size if self.has_phases else batch_size

        return Rank(plan, size_at, lambda position: int(crops[position]), loader.step, 0, counted)

    def check(self, number: int, take: Callable[[], Any]) -> bool:
        """The batch that `take` takes must be the next one; returns whether there is none."""
        model = self.model.ranks[number]
        try:
            crops = [tuple(crop) for crop in np.asarray(take()[-1]).tolist()]
        except StopIteration:
            crops, self.ended[number] = [], True
        assert crops == model.batch(), (number, crops, model.batch())
        model.given += bool(crops)
        return not crops

    def taker(self, number: int, direct: bool) -> Callable[[], Any]:
        return lambda: next(self.loaders[number] if direct or self.over[number] else self.iterators[number])

    @rule(rank=ranks, count=st.integers(1, 5), direct=st.booleans())
    def take(self, rank: int, count: int, direct: bool) -> None:
        rank %= len(self.loaders)
        for _ in range(count):
            model = self.model.ranks[rank]
            if self.training and model.end(model.given + 9) == len(model.crops):
                return
            self.over[rank] |= self.check(rank, self.taker(rank, direct)) and not direct

    @rule(count=st.integers(1, 9))
    def take_on_all(self, count: int) -> None:
        for rank in range(len(self.loaders)):
            self.take(rank, count, direct=False)

    @rule(rank=ranks, line=st.integers(1, 120), direct=st.booleans())
    def interrupt(self, rank: int, line: int, direct: bool) -> None:
        rank %= len(self.loaders)
        take = self.taker(rank, direct)
        try:
            self.over[rank] |= self.check(rank, lambda: interrupted(take, line)) and not direct
        except KeyboardInterrupt:
            if not self.model.ranks[rank].batch():
                self.check(rank, lambda: next(self.loaders[rank]))

    @rule(rank=ranks, passes=st.integers(0, 3))
    def fail(self, rank: int, passes: int) -> None:
        """An error that passes after some tries, or one that lasts."""
        rank %= len(self.loaders)
        self.simulation.errors[rank] = [passing() for _ in range(passes)] or [lasting()]
        try:
            self.check(rank, lambda: next(self.loaders[rank]))
        except TfpipeError as error:
            assert "stopped: /data/a.JPEG" in str(error) and not passes
        finally:
            self.simulation.errors.clear()

    @rule(rank=ranks)
    def close_within_a_pause(self, rank: int) -> None:
        """A thread that waits for a batch, as the pipeline waits to try again, gets none, and none is built for it."""
        rank %= len(self.loaders)
        loader, outcome = self.loaders[rank], list[Any]()
        errors = self.simulation.errors[rank] = [passing()]

        def take() -> None:
            try:
                outcome.append(next(loader))
            except BaseException as error:
                outcome.append(error)

        self.close(rank)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("tfpipe.util.retry.FIRST_PAUSE_S", 3600.0)
            thread = threading.Thread(target=take, daemon=True)
            thread.start()
            while errors and not outcome:
                time.sleep(0)
            built = self.simulation.built
            loader.close()
            thread.join(60)
        self.simulation.errors.clear()
        assert outcome and isinstance(outcome[0], Exception), "a batch came after the end, or the pause went on"
        self.ended[rank] |= isinstance(outcome[0], StopIteration)
        assert self.simulation.built == built or self.ended[rank]
        self.went_back(rank)

    def went_back(self, number: int) -> None:
        model = self.model.ranks[number]
        self.ended[number] &= model.used == model.given
        model.first = model.given = model.used
        self.over[number] |= self.by_this_pass

    @rule(rank=ranks)
    def close(self, rank: int) -> None:
        rank %= len(self.loaders)
        self.loaders[rank].close()
        self.went_back(rank)

    @rule(rank=ranks)
    def start(self, rank: int) -> None:
        self.loaders[rank % len(self.loaders)].start()

    @rule(rank=ranks, back=st.integers(0, 6))
    def commit(self, rank: int, back: int) -> None:
        rank %= len(self.loaders)
        model, loader = self.model.ranks[rank], self.loaders[rank]
        if model.given - back < (model.first if model.counted is None else model.counted):
            with pytest.raises(ValueError, match="the last batch that counts can be"):
                loader.commit(loader.step - back)
        else:
            loader.commit(loader.step - back)
            model.counted = model.given - back

    @rule(back=st.integers(0, 2))
    def commit_on_all(self, back: int) -> None:
        for rank in range(len(self.loaders)):
            self.commit(rank, back)

    @precondition(lambda self: not self.training)
    @rule(this_pass=st.booleans())
    def leave(self, this_pass: bool) -> None:
        """All ranks begin a pass: the rest of one that was loaded, or a whole one."""
        if this_pass:
            for number in range(len(self.loaders)):
                self.loaders[number].close()
                self.went_back(number)
        fresh = [model.given == 0 and not ended for model, ended in zip(self.model.ranks, self.ended, strict=True)]
        if any(fresh) and not all(fresh):
            return
        if this_pass:
            passes = [loader.this_pass() for loader in self.loaders]
            for each in passes:
                each._began = each._bounds.begin()  # as its first batch does
            self.iterators = [*passes]
        else:
            self.iterators = [*map(iter, self.loaders)]
        self.over, self.by_this_pass = [False] * len(self.loaders), this_pass
        if not fresh[0]:
            self.restarted()

    def restarted(self) -> None:
        self.untold = [self.to_tell(number) for number in range(len(self.loaders))]
        counted = [None if model.counted is None else 0 for model in self.model.ranks]
        self.model = Model([self.rank(number, self.fresh(number), each) for number, each in enumerate(counted)])
        self.ended, self.told = [False] * len(self.loaders), [set() for _ in self.loaders]

    @precondition(lambda self: self.training)
    @rule(rank=ranks, most=st.integers(1, 9))
    def take_epoch(self, rank: int, most: int) -> None:
        """The rest of an epoch, or some of it."""
        rank %= len(self.loaders)
        loader, model = self.loaders[rank], self.model.ranks[rank]
        epoch = loader.epoch()
        assert len(loader.epoch(0)) == max(0, loader.schedule.first_step(1) - loader.step)
        if model.end(model.given + 19) == len(model.crops):
            return
        for _ in range(min(most, len(epoch))):
            self.check(rank, lambda: next(epoch))
        if len(epoch) <= most:
            assert next(epoch, None) is None

    @rule(size=st.integers(1, 4), same=st.booleans(), in_place=st.booleans())
    def save_and_load(self, size: int, same: bool, in_place: bool) -> None:
        old, model, before = len(self.loaders), self.model, [loader.step for loader in self.loaders]
        state, *others = on_all(lambda loader: json.loads(json.dumps(loader.state_dict())), self.loaders)
        assert all(other == state for other in others)
        counts = model.counts()
        assert len({*counts}) == len(counts) == state["crops"]
        over = not self.training and all(rank.is_over for rank in model.ranks)
        assert [loader.step for loader in self.loaders] == before
        if self.skips and not self.training:
            # Whether the last images are all bad is not known before the pass is over.
            over = state["ended"]
            assert not over or all(rank.is_over for rank in model.ranks)
        assert state["ended"] == over
        size = old if in_place or self.is_shard or (self.has_phases and not same) else size
        if not in_place:
            for loader in self.loaders:
                loader.close()
            if size != old and not same and self.batch_size * old % size == 0 and not self.has_phases:
                self.batch_size = self.batch_size * old // size
            self.open(size)
        self.untold = [self.to_tell(number) if in_place else [] for number in range(size)]
        for loader in self.loaders:
            loader.load_state_dict(state)
        self.iterators = [*map(iter, self.loaders)]
        self.over, self.ended, self.by_this_pass = [False] * size, [False] * size, False
        self.told = [set() for _ in range(size)]
        plans = [self.fresh(number) for number in range(size)] if over else model.dealt(size)
        counted = (
            [0 if in_place and rank.counted is not None else None for rank in model.ranks]
            if in_place
            else [None] * size
        )
        self.model = Model(
            [self.rank(number, plan, each) for number, (plan, each) in enumerate(zip(plans, counted, strict=True))],
            [] if over else counts,
        )
        if not self.training and not self.skips:
            lengths = [len(loader.epoch()) for loader in self.loaders]
            assert lengths == [-(-len(rank.crops) // self.batch_size) for rank in self.model.ranks]

    @precondition(lambda self: self.skips)
    @rule(rank=ranks)
    def ask_for_dropped(self, rank: int) -> None:
        rank %= len(self.loaders)
        dropped = sorted(sample.position for sample in self.loaders[rank].dropped())
        assert dropped == self.to_tell(rank), (rank, dropped, self.to_tell(rank))
        self.untold[rank], self.told[rank] = [], self.told[rank] | self.passed(rank)
        assert self.loaders[rank]._delivery.dropped._confirmed_counts.total() == len(self.told[rank])

    def to_tell(self, number: int) -> list[int]:
        return sorted([*self.untold[number], *self.passed(number) - self.told[number]])

    def passed(self, number: int) -> set[int]:
        """The positions of bad samples that a rank has passed."""
        model = self.model.ranks[number]
        over = self.ended[number] and model.used == model.given
        return {position for position in model.passed(over) if not model.crops_at(position) and self.skips}

    @invariant()
    def steps_are_counted(self) -> None:
        for loader, model in zip(self.loaders, self.model.ranks, strict=True):
            assert (loader.step, loader.used) == (model.step + model.given, model.step + model.used)

    def teardown(self) -> None:
        for loader in getattr(self, "loaders", []):
            loader.close()


# In parts, each of which is far from pytest's limit of time, with a seed of its own.
@pytest.mark.parametrize("part", range(4 if FULL else 1))
def test_whatever_is_done_each_crop_is_handed_out_and_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    Loaders.simulation, Loaders.kinds = Simulation(), kinds(tmp_path)
    simulate(monkeypatch, Loaders.simulation)
    how = {"stateful_step_count": 25, "deadline": None, "suppress_health_check": [*HealthCheck]}
    run_state_machine_as_test(Loaders, settings=settings(max_examples=250 if FULL else 120, **how))


def test_a_sample_that_comes_again_after_a_first_commit_is_told_and_counted_once_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of the machine that are rare there."""
    Loaders.simulation, Loaders.kinds = Simulation(), kinds(tmp_path)
    simulate(monkeypatch, Loaders.simulation)
    state = Loaders()
    state.begin("test, skip", size=1, batch_size=1)
    state.take_on_all(7)
    state.ask_for_dropped(0)
    state.commit(0, back=5)
    state.close(0)
    state.take_on_all(9)
    state.commit(0, back=0)
    state.ask_for_dropped(0)
    state.leave(this_pass=False)
    state.take_on_all(9)
    state.commit(0, back=0)
    state.ask_for_dropped(0)
    assert state.told == [{2}]
    state.teardown()


@pytest.mark.parametrize("name", ["train", "test"])
def test_an_interrupt_at_any_line_of_the_pipelines_end_leaves_no_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The end of a pass, or one by an error: between its lines something may know a thread that has ended already."""
    simulation, kind, crops = Simulation(), kinds(tmp_path)[name], list[list[int]]()
    simulate(monkeypatch, simulation)
    with Loader(kind.config(sum(BOXES)), name, data=kind.split, positions=True, timeout_s=60) as loader:
        for line in range(1, 1000):
            iterator = iter(loader)
            crops += np.asarray(next(iterator)[-1]).tolist()
            simulation.errors[0] = [lasting()]
            try:
                assert interrupted(partial(next, iterator, None), line) is None
                break
            except TfpipeError:
                break
            except KeyboardInterrupt:
                simulation.errors.clear()
                try:
                    after = next(iterator, None)
                except TfpipeError:  # that was known before the interrupt
                    after = next(iterator, None)
            assert (after is None) == (name == "test") and loader.state_dict()["ended"] == (after is None)
            crops += [] if after is None else np.asarray(after[-1]).tolist()
    assert line > 30, "lines of several modules"
    assert len({*map(tuple, crops)}) * (1 if name == "train" else line) == len(crops)
