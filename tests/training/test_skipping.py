"""Images that `data.on_error` "skip" leaves out are counted before a checkpoint, which must know of them."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tfpipe import World
from tfpipe.errors import TfpipeError
from tfpipe.training.run_model import Requests
from tfpipe.training.skipping import BAD_FILES, HEADING, Skipping


def test_what_was_left_out_is_listed_before_a_checkpoint_and_every_interval(tmp_path: Path) -> None:
    left_out = [(7, SimpleNamespace(path="a.jpg", reason="no\nJPEG:\t\r\n\u2028it"))]
    data = SimpleNamespace(max_bad_fraction=0.2)
    loader = SimpleNamespace(world=World(), split="train", dropped=lambda: left_out, config=SimpleNamespace(data=data))
    order, catalog = SimpleNamespace(length=10), SimpleNamespace(split="train")
    loader.data = SimpleNamespace(order=order, catalog=catalog, world=World())
    model = SimpleNamespace(granted=Requests(), meter=SimpleNamespace(steps=3), dropped_images=0)
    skipping = Skipping(loader, tmp_path, interval=3, before=0)
    skipping.set_model(model)
    skipping.on_epoch_begin(0)
    skipping.on_train_batch_end(0)
    assert model.dropped_images == 0 and not (tmp_path / BAD_FILES).exists()
    model.granted = Requests(save=True)
    skipping.on_train_batch_end(1)
    assert model.dropped_images == 1
    assert (tmp_path / BAD_FILES).read_text() == f"{HEADING}3\t0\ttrain\t7\ta.jpg\tno JPEG: it\n", "a line each"
    model.granted = Requests()
    for batch in (2, 3):
        skipping.on_train_batch_end(batch)
    assert model.dropped_images == 1
    skipping.on_train_batch_end(4)
    assert model.dropped_images == 2, "of 10, as many as may be left out"
    with pytest.raises(TfpipeError, match=r"3 of 10 train samples cannot be used, .* 0\.2 allows 2;"):
        skipping.on_epoch_end(0, {})
