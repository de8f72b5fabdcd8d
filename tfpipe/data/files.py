"""Small files read in as few calls as there can be: a file object asks the system five times as often."""

import os

# Holds any annotation but a very long one.
SOME = 2**14


def read_start(path: str, count: int) -> bytes:
    """The first `count` bytes of the file at `path`, or fewer where it is shorter.

    Raises:
        OSError: it cannot be read; names it.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, count)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(file)


def read_whole(path: str) -> bytes:
    """The file at `path`.

    Raises:
        OSError: it cannot be read; names it.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        text = more = os.read(file, SOME)
        # A file gives less than it is asked for where it ends, and there only; to ask again is a tenth of its cost.
        while len(more) == SOME:
            more = os.read(file, SOME)
            text += more
        return text
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(file)
