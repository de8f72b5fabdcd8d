"""Errors: the exit codes that docs/ and the job scripts name."""

from tests.support.commands import ROOT
from tfpipe.errors import ConfigError, Stopped, TfpipeError


def test_exit_codes_are_those_that_are_documented() -> None:
    assert (TfpipeError.exit_code, ConfigError.exit_code, Stopped.exit_code) == (1, 2, 75)
    assert "((code == 75))" in (ROOT / "jobs/common.sh").read_text()
