"""The processes of a pool do not run the user's script, and end with the process that has started them."""

import signal
import sys
from pathlib import Path

from tests.support.commands import ROOT, finish, start

WORK = """
from time import sleep
from tfpipe.util.pools import parallel
for _ in parallel(sleep, [0, 600, 600], 2):
    print("begun", flush=True)
"""


def test_no_process_outlives_a_killed_parent() -> None:
    process = start(sys.executable, "-c", WORK)
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGKILL)
    # The output ends once no process has it open.
    assert finish(process).code == -signal.SIGKILL


def test_no_process_runs_a_script_without_a_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    work = "from tfpipe.util.pools import parallel; print('runs', flush=True); print(*parallel(abs, [-1, -2, 3], 2))"
    script.write_text(work)
    done = finish(start(sys.executable, script))
    assert (done.code, done.out) == (0, "runs\n1 2 3\n"), done.err


def test_there_is_no_other_way_to_start_processes_of_python() -> None:
    others = ("ProcessPoolExecutor(", "get_context(", "multiprocessing.Pool", "multiprocessing.Process")
    files = [path for path in (ROOT / "tfpipe").rglob("*.py") if any(each in path.read_text() for each in others)]
    assert [path.name for path in files] == ["pools.py"]
