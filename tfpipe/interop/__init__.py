"""Batches for other frameworks."""

from tfpipe.requirements import check_tensorflow

check_tensorflow()
