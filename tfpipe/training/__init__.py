"""Training with Keras, on one process or on MPI ranks with Horovod."""

__all__ = [
    "by_name",
    "callbacks",
    "checkpointing",
    "compile",
    "evaluate",
    "loop",
    "models",
    "monitor",
    "optimizers",
    "own_callbacks",
    "own_metrics",
    "parallel",
    "pretrained",
    "recovery",
    "skipping",
]
