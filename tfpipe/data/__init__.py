"""From a list of files to batches; knows neither Keras nor Horovod."""
