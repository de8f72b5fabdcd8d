"""The phases of training, in each of which crops and batches have one size, and the steps of its epochs.

An epoch is a number of steps, computed from the crops and the batch size, and the same on every rank. So a phase begins
after the steps of the epochs before it, on all ranks with the same step, and no batch has crops of two phases.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from tfpipe.config import DataConfig
from tfpipe.data.order.permutation import steps_per_epoch


class Phase(NamedTuple):
    """Epochs whose crops and batches have one size."""

    epoch: int
    """The first one."""
    steps: int
    """Steps of each of them."""
    batch_size: int
    """Crops per batch and rank."""


@dataclass(frozen=True)
class Schedule:
    """The phases of training, from epoch 0 on without end, and the steps at which a run is in them."""

    phases: tuple[Phase, ...]
    """In ascending order; the last one does not end."""
    skipped: int = 0
    """Steps of the epochs so far that the run does not count: it had fewer, on more ranks; negative: more."""

    @classmethod
    def of(cls, data: DataConfig, crops: int, size: int, steps: int | None = None) -> "Schedule":
        """Returns the schedule of `size` ranks for epochs of `crops` crops, or of `steps` steps unless that is None."""
        return cls(
            tuple(
                Phase(epoch, steps or steps_per_epoch(crops, part.batch_size, size), part.batch_size)
                for epoch, part in data.phases
            )
        )

    def phase(self, epoch: int) -> Phase:
        """Returns the phase of an epoch."""
        return next(phase for phase in reversed(self.phases) if phase.epoch <= epoch)

    def first_step(self, epoch: int) -> int:
        """Returns the number of steps before an epoch."""
        ends = [phase.epoch for phase in self.phases[1:]] + [epoch]
        epochs = (min(epoch, end) - phase.epoch for phase, end in zip(self.phases, ends, strict=True))
        whole = sum(max(0, count) * phase.steps for phase, count in zip(self.phases, epochs, strict=True))
        return whole - self.skipped

    def locate(self, step: int) -> tuple[int, int]:
        """Returns the epoch after `step` steps, and the steps done in it."""
        begun = (phase for phase in reversed(self.phases) if self.first_step(phase.epoch) <= step)
        phase = next(begun, self.phases[0])
        epochs, done = divmod(step - self.first_step(phase.epoch), phase.steps)
        return phase.epoch + epochs, done

    def phase_after(self, step: int) -> tuple[Phase, int]:
        """Returns the phase after `step` steps, and the steps left in it; -1 if it does not end."""
        place = self.phases.index(self.phase(self.locate(step)[0]))
        following = self.phases[place + 1 : place + 2]
        return self.phases[place], self.first_step(following[0].epoch) - step if following else -1

    def at(self, step: int, done: tuple[int, int] | None) -> "Schedule":
        """Returns the schedule of a run that has done `step` steps, in the last epoch as `done` says.

        `done` is that epoch and the steps done in it, or None if all epochs had as many steps as here.
        """
        plain = replace(self, skipped=0)
        return plain if done is None else replace(plain, skipped=plain.first_step(done[0]) + done[1] - step)

    def resume_step(self, then: "Schedule", step: int, ranks_then: int, ranks: int) -> int:
        """Returns the step at which this run resumes another one, of which `step` steps are done, in the same epoch.

        `then` is the other run's schedule, of `ranks_then` ranks. A step counts by its crops, rounded down.
        """
        epoch, done = then.locate(step)
        crops = done * then.phase(epoch).batch_size * ranks_then
        now = self.phase(epoch)
        return self.first_step(epoch) + min(crops // (now.batch_size * ranks), now.steps - 1)
