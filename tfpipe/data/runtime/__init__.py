"""The side of the pipeline that belongs to tf.data: options, parallelism, stage names, autotune, shutdown, errors."""

__all__ = [
    "autotune",
    "clock",
    "op_errors",
    "parallelism",
    "samples",
    "shutdown",
    "simulated_latency",
    "skip_failed",
    "stage",
    "tracing",
]
