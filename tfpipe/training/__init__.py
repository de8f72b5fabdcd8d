"""Training with Keras, on one process or on MPI ranks with Horovod."""

__all__ = [
    "callbacks",
    "checkpointing",
    "compile",
    "evaluate",
    "loop",
    "models",
    "monitor",
    "optimizers",
    "parallel",
    "recovery",
    "skipping",
]
