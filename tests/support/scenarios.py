"""Runs several tfpipe commands in turn as one rank of an mpirun, which takes a second for each rank to start.

`python scenarios.py FILE`: FILE holds a JSON list of scenarios. The output of a command and its exit code go to the
folder's NAME-RANK.out, .err and .code; the process ends with the last one's code.
"""

import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple


class Scenario(NamedTuple):
    name: str
    args: Sequence[str]
    constants: Mapping[str, int] = {}
    """Values, by module and name such as "tfpipe.tools.check.split.IMAGES_PER_TASK", that it has meanwhile."""


class Result(NamedTuple):
    code: int
    out: str
    err: str


def write(folder: Path, scenarios: Sequence[Scenario]) -> Path:
    """Writes the file that tells the ranks what to do."""
    path = folder / "scenarios.json"
    path.write_text(json.dumps(scenarios))
    return path


def read(folder: Path, name: str, rank: int) -> Result:
    code, out, err = ((folder / f"{name}-{rank}.{kind}").read_text() for kind in ("code", "out", "err"))
    return Result(int(code), out, err)


def _run(scenario: Scenario, path: str) -> int:
    from tfpipe.cli import main, program

    # A failed command would end the ranks, which have more to do.
    program.end_other_ranks = lambda code: None
    places = {name: (import_module(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in scenario.constants}
    before = {name: getattr(*place) for name, place in places.items()}
    kept = [os.dup(number) for number in (1, 2)]
    for number, kind in ((1, "out"), (2, "err")):
        file = os.open(f"{path}.{kind}", os.O_WRONLY | os.O_CREAT, 0o666)
        os.dup2(file, number)
        os.close(file)
    for name, value in scenario.constants.items():
        setattr(*places[name], value)
    try:
        code = main(scenario.args)
    except BaseException:
        traceback.print_exc()
        code = 99
    for name, value in before.items():
        setattr(*places[name], value)
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        stream.flush()
        os.dup2(kept.pop(0), number)
    Path(f"{path}.code").write_text(str(code))
    return code


if __name__ == "__main__":
    code = 0
    for scenario in json.loads(Path(sys.argv[1]).read_text()):
        path = f"{Path(sys.argv[1]).parent}/{scenario[0]}-{os.environ['OMPI_COMM_WORLD_RANK']}"
        code = _run(Scenario(*scenario), path)
    sys.exit(code)
