"""The JSON config: every key with its default and meaning, and errors that name all mistakes at once."""

from tfpipe.config.data import DataConfig
from tfpipe.config.data_sections import Layout, Parallel, RandomResizedCrop, Remote, WeightedList
from tfpipe.config.data_source import Columns, SourceConfig
from tfpipe.config.load import load_config, make_config
from tfpipe.config.model import Config, TrainingConfig
from tfpipe.config.section import Kernel, Section

__all__ = [
    "Columns",
    "Config",
    "DataConfig",
    "Kernel",
    "Layout",
    "Parallel",
    "RandomResizedCrop",
    "Remote",
    "Section",
    "SourceConfig",
    "TrainingConfig",
    "WeightedList",
    "load_config",
    "make_config",
]
