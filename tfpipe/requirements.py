"""Whether this Python has a TensorFlow and a Keras that tfpipe runs with: a site's own build, or PyPI's.

No distribution is asked for by name: vendors' have others, and pip would put PyPI's files over theirs. Neither is
imported, so that the answer takes no second.
"""

import re
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from tfpipe.errors import ConfigError

OLDEST, OLDEST_KERAS = (2, 15), (3, 5)
REMEDY = (
    "load a module of TensorFlow 2.16 to 2.21 if this is a site that has one (jobs/README.md), or: "
    "pip install 'tfpipe[tensorflow]'"
)
KERAS = "pip install 'keras>=3.5,<3.16'"


def check_tensorflow() -> None:
    """Raises ConfigError if there is no TensorFlow, or one that is older than 2.15."""
    if sys.modules.get("tensorflow") is not None:
        return
    spec = find_spec("tensorflow")
    if spec is None or spec.origin is None:
        raise ConfigError(f"{sys.executable} has no TensorFlow: {REMEDY}")
    if number := _header_version(Path(spec.origin).parent):
        check_version(number, spec.origin)


def check_version(number: str, where: str) -> None:
    """Raises ConfigError if a version of TensorFlow, whose package is at `where`, is older than 2.15."""
    if _numbers(number) < OLDEST:
        raise ConfigError(
            f"TensorFlow {number} ({where}) is older than 2.15, the oldest that tfpipe runs with: {REMEDY}"
        )


def check_keras() -> None:
    """Raises ConfigError if there is no Keras 3.5 or newer, which training, evaluation and prediction need."""
    check_tensorflow()
    if find_spec("keras") is None:
        raise ConfigError(f"this needs Keras 3.5 or newer, and {sys.executable} has none: {KERAS}")
    try:
        number = version("keras")
    except PackageNotFoundError:  # under another name, as a nightly: what it lacks will show
        return
    if _numbers(number) < OLDEST_KERAS:
        other = f"TensorFlow 2.15 goes with no other, and tfpipe.Loader feeds a loop of your own; or {REMEDY}"
        remedy = KERAS if _numbers(number) >= (3, 0) else other
        raise ConfigError(f"this needs Keras 3.5 or newer, and Keras {number} is installed: {remedy}")


def _header_version(package: Path) -> str | None:
    """Returns the version that the headers of TensorFlow state: up to 2.19 they do, where they are installed."""
    try:
        text = (package / "include/tensorflow/core/public/version.h").read_text()
    except OSError:
        return None
    numbers = [re.search(rf"define TF_{part}_VERSION (\d+)", text) for part in ("MAJOR", "MINOR")]
    return f"{numbers[0][1]}.{numbers[1][1]}" if numbers[0] and numbers[1] else None


def _numbers(version: str) -> tuple[int, ...]:
    """Returns a version's first two numbers: (2, 17) of "2.17.0+nv25.2"."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))
