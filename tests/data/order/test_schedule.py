"""The schedule: which phase and epoch a step is in, against a list of all steps; where a resumed run continues."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tfpipe import make_config
from tfpipe.data.order.schedule import Phase, Schedule


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    epochs = sorted({0, *draw(st.lists(st.integers(1, 12), max_size=4))})
    return Schedule(tuple(Phase(epoch, draw(st.integers(1, 9)), draw(st.integers(1, 64))) for epoch in epochs))


def all_steps(schedule: Schedule, epochs: int) -> list[tuple[int, int, Phase]]:
    """(epoch, steps done in it, phase) before each step of the first `epochs` epochs."""
    steps = []
    for epoch in range(epochs):
        phase = max((each for each in schedule.phases if each.epoch <= epoch), key=lambda each: each.epoch)
        steps += [(epoch, done, phase) for done in range(phase.steps)]
    return steps


@given(schedules(), st.integers(-50, 50))
def test_each_step_is_in_its_epoch_and_phase(schedule: Schedule, skipped: int) -> None:
    schedule = replace(schedule, skipped=skipped)
    listed = all_steps(schedule, 20)
    for number, (epoch, done, phase) in enumerate(listed):
        step = number - skipped
        assert schedule.locate(step) == (epoch, done)
        assert schedule.first_step(epoch) + done == step
        assert schedule.phase(epoch) == phase
        following = [place for place, (*_, other) in enumerate(listed) if place > number and other != phase]
        assert schedule.phase_after(step) == (phase, following[0] - number if following else -1)


@given(schedules(), st.integers(0, 15), st.integers(0, 100), st.integers(0, 10**6))
def test_a_run_that_has_had_other_epochs_is_where_it_says(schedule: Schedule, epoch: int, done: int, step: int) -> None:
    done %= schedule.phase(epoch).steps
    moved = schedule.at(step, (epoch, done))
    assert moved.locate(step) == (epoch, done)
    assert moved.at(0, None) == schedule


@given(schedules(), st.integers(0, 200), st.integers(1, 8), st.integers(1, 8))
def test_another_number_of_ranks_resumes_in_the_same_epoch(then: Schedule, step: int, before: int, after: int) -> None:
    """Its crops are those done, rounded down to whole steps; the beginning of an epoch stays one."""
    now = Schedule(tuple(phase._replace(steps=-(-phase.steps * before // after)) for phase in then.phases))
    epoch, done = then.locate(step)
    resumed = now.resume_step(then, step, before, after)
    there, there_done = now.locate(resumed)
    assert there == epoch
    assert there_done == min(done * before // after, now.phase(epoch).steps - 1)
    assert now.resume_step(then, then.first_step(epoch), before, after) == now.first_step(epoch)


def test_a_schedule_has_the_steps_of_each_batch_size() -> None:
    sizes = {"batch_size": [[0, 16], [2, 8]], "crop_image_size": [[0, 32], [1, [48, 64]]]}
    data = make_config({"data": {"train_filelist": "unused.txt", **sizes}}).data
    assert [(epoch, part.crop_image_size, part.batch_size) for epoch, part in data.phases] == [
        (0, (32, 32), 16),
        (1, (48, 64), 16),
        (2, (48, 64), 8),
    ]
    schedule = Schedule.of(data, crops=100, size=2)
    assert [tuple(phase) for phase in schedule.phases] == [(0, 4, 16), (1, 4, 16), (2, 7, 8)]
    assert {phase.steps for phase in Schedule.of(data, 100, 2, steps=5).phases} == {5}
