"""Ends a script that lacks a program or packages with a line that says which, before it measures anything."""

import shutil
import subprocess
import sys

FIND = """
import sys
from importlib.util import find_spec

def there(name):
    try:
        return find_spec(name) is not None
    except ImportError:  # there is no package around it either
        return False

print(*(name for name in sys.argv[1:] if not there(name)))
"""


def need_programs(*names: str, advice: str) -> None:
    """Raises SystemExit if a program is not on PATH; `advice` says how to get it, or how to do without it."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        raise SystemExit(f"not on PATH: {', '.join(missing)}; {advice}")


def lacking(python: str, modules: set[str]) -> list[str]:
    """Returns the modules that a Python lacks; raises SystemExit if there is no such Python."""
    try:
        done = subprocess.run([python, "-c", FIND, *sorted(modules)], stdout=subprocess.PIPE, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"{python} is no Python that runs: {error}") from error
    return done.stdout.split()


def need_modules(python: str, modules: set[str], advice: str) -> None:
    """Raises SystemExit if a Python lacks a module; `advice` says how to get it, or how to do without it."""
    missing = lacking(python, modules) if modules else []
    if missing:
        of = "this Python" if python == sys.executable else python
        raise SystemExit(f"{of} lacks {', '.join(missing)}; {advice}")
