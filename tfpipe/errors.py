"""Errors a user can act on: one clear message on stderr, and an exit code."""


class TfpipeError(Exception):
    """Something went wrong at run time; the message says what, where and what to do next."""

    exit_code = 1


class ConfigError(TfpipeError):
    """What the user gave (config, command line, filelist, launch) cannot be used as it is."""

    exit_code = 2


class Stopped(TfpipeError):
    """The run was asked to stop, and has saved its state; not a failure, so it has a code of its own."""

    exit_code = 75
    """EX_TEMPFAIL of sysexits.h: try again later."""
