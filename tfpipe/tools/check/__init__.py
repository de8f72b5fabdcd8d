"""Whether training can use the files of a list: what is odd, and what would stop it."""

from tfpipe.tools.check.listed import check
from tfpipe.tools.check.result import Checked

__all__ = ["Checked", "check"]
