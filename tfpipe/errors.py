"""Errors that a user can act on, one message on stderr and an exit code, and how all messages count things."""

import re

# A user, and perhaps a password, in a URL.
LOGIN = re.compile(r'://[^/"\s]*@')


def mask_passwords(text: str) -> str:
    """Returns a text without the users and passwords of its URLs."""
    return LOGIN.sub("://***@", text)


def counted(number: float, noun: str) -> str:
    """Returns a whole number and its noun, in the plural unless it is 1: "1 image", "1,281,167 images", "2 classes"."""
    if number == 1:
        return f"1 {noun}"
    stem = f"{noun[:-1]}ie" if noun.endswith("ry") else noun
    return f"{int(number):,} {stem}{'es' if noun.endswith(('s', 'x', 'tch')) else 's'}"


class TfpipeError(Exception):
    """A failure at run time; the message says what failed, where, and what to do next.

    It never repeats a password of a URL, whatever has raised it, since logs and records of runs keep messages.
    """

    exit_code = 1

    def __init__(self, message: object = "") -> None:
        super().__init__(mask_passwords(str(message)))


class ConfigError(TfpipeError):
    """An unusable input: config, command line, filelist or launch."""

    exit_code = 2


class Stopped(TfpipeError):
    """A requested stop, after the run has saved its state; no failure, hence an exit code of its own."""

    exit_code = 75
    """EX_TEMPFAIL of sysexits.h: try again later."""
