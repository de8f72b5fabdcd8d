"""Errors that a user can act on: one message on stderr, and an exit code."""


class TfpipeError(Exception):
    """A failure at run time; the message says what failed, where, and what to do next."""

    exit_code = 1


class ConfigError(TfpipeError):
    """An unusable input: config, command line, filelist or launch."""

    exit_code = 2


class Stopped(TfpipeError):
    """A requested stop, after the run has saved its state; no failure, hence an exit code of its own."""

    exit_code = 75
    """EX_TEMPFAIL of sysexits.h: try again later."""
