"""Programs that end while their pipeline works on."""

from pathlib import Path

import pytest

from tests.support.commands import WARM, finish, start
from tests.support.sample import SampleData

PROGRAM = """
import sys
from tfpipe import World, build_dataset, load_config

batches = iter(build_dataset(load_config(sys.argv[1], sys.argv[2:]), "train", World(threads=2)))
next(batches)
"""


@pytest.mark.parametrize("late", [0, 300])
def test_a_program_ends_while_images_are_decoded(sample: SampleData, tmp_path: Path, late: int) -> None:
    config = sample.config(tmp_path / "c.json")
    sets = [f"data.storage_delay_ms={late}", "data.crop_image_size=[512, 512]", "data.prefetch_buffer_size=64"]
    done = finish(start(*WARM, "-c", PROGRAM, config, *sets), timeout_s=60)
    assert done.code == 0, done.err
