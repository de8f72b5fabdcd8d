"""Whether training can use the images of a split: what is odd, and what would stop it."""

from tfpipe.tools.check.result import Checked
from tfpipe.tools.check.split import check

__all__ = ["Checked", "check"]
