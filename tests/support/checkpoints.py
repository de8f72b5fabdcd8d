"""State of a run as a checkpoint holds it."""

import numpy as np

from tfpipe.data.order.stream import Cursor, Stream
from tfpipe.training.checkpointing.checkpoints import GlobalBatch, State

CONTRACT = {"data.scope": "global", "data.seed": 0, "images": 96, "file names": "ab" * 32}
STATE = State(
    epoch=3,
    step=7,
    total_steps=41,
    batch=GlobalBatch(2, 16),
    stream=Stream((Cursor(12, 2), Cursor(31)), 30, np.array([[12, 1], [17, 0]])),
    contract=CONTRACT,
    untested={"loss": 0.5},
    seeds=np.arange(12).reshape(2, 3, 2),
    metrics={"loss/total": np.array(1.5), "recall/hits": np.array([32.0, 1.0])},
    epoch_steps=10,
)
