"""From a list of files to batches; knows neither Keras nor Horovod."""

__all__ = [
    "annotations",
    "catalog",
    "failures",
    "images",
    "loader",
    "order",
    "pipeline",
    "runtime",
    "service",
    "sources",
]
