"""Programs that end while their pipeline works on."""

from pathlib import Path

import pytest

from tests.support.commands import WARM, finish, start
from tests.support.sample import SampleData
from tfpipe.data.runtime.clock import DELAY_MS

PROGRAM = """
import sys
from tfpipe import World, build_dataset, load_config

batches = iter(build_dataset(load_config(sys.argv[1], sys.argv[2:]), "train", World(threads=2)))
next(batches)
"""


@pytest.mark.parametrize("late", [0, 300])
def test_a_program_ends_while_images_are_decoded(sample: SampleData, tmp_path: Path, late: int) -> None:
    config = sample.config(tmp_path / "c.json")
    sets = ["data.crop_image_size=[512, 512]", "data.prefetch_buffer_size=64"]
    done = finish(start(*WARM, "-c", PROGRAM, config, *sets, **{DELAY_MS: str(late)}))
    assert done.code == 0, done.err


UNCLOSED = """
import atexit, sys
import tensorflow as tf

own = iter(tf.data.Dataset.range(9).map(lambda number: number + 1).prefetch(2))
# Runs after the handlers that are registered later.
atexit.register(lambda: print(next(own).numpy(), hasattr(over, "_dataset")))

from tfpipe import Loader, World, build_dataset, load_config

config = load_config(sys.argv[1], sys.argv[2:])
over = iter(build_dataset(config, "train", World(threads=1)).map(lambda images, labels: labels))
loader = Loader(config, "train", World(threads=1))
next(over), next(loader)
"""


@pytest.mark.parametrize("limit", ["null", "60"])
def test_the_users_own_iterators_go_on_and_a_loader_that_is_not_closed_is_silent(
    sample: SampleData, tmp_path: Path, limit: str
) -> None:
    config = sample.config(tmp_path / "c.json")
    done = finish(start(*WARM, "-c", UNCLOSED, config, f"data.stall_timeout_s={limit}"))
    assert (done.code, done.out) == (0, "1 False\n"), done.err
    assert "Exception ignored" not in done.err and "Traceback" not in done.err


IN_A_THREAD = """
import sys, threading
from tfpipe import Loader, World, load_config

loader, some = Loader(load_config(sys.argv[1], sys.argv[2:]), "test", World(threads=1)), threading.Semaphore(0)

def take():
    while True:
        for batch in loader:
            some.release()

threading.Thread(target=take, daemon=True).start()
for _ in range(20):
    some.acquire()
"""


@pytest.mark.full("a command; the handler that ends pipelines has one in make test")
@pytest.mark.parametrize("limit", ["null", "60"])
def test_a_daemon_thread_that_takes_batches_ends_without_a_word(sample: SampleData, tmp_path: Path, limit: str) -> None:
    config = sample.config(tmp_path / "c.json", data={"batch_size": 2})
    for _ in range(3):
        done = finish(start(*WARM, "-c", IN_A_THREAD, config, f"data.stall_timeout_s={limit}"))
        assert done.code == 0, done.err
        assert "Exception" not in done.err and "terminate" not in done.err, done.err
