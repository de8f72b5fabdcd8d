"""The side of the pipeline that belongs to tf.data: options, parallelism, stage names, autotune, shutdown, errors."""
