"""What changes the process as a whole: each change is undone, and in one module."""

import gc
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.commands import ROOT
from tfpipe.util.process import (
    bypass_proxy,
    drop_output,
    hidden_main,
    kept_handler,
    own_symbols,
    redirect,
    without_collections,
    without_log,
    yield_when_idle,
)

EFFECTS = re.compile(
    r"os\.dup2|setdlopenflags|RTLD_(GLOBAL|DEEPBIND)|signal\.signal\(|set_wakeup_fd|faulthandler\.|setdefaulttimeout"
    r"|setrlimit|logging\.disable"
    r"|sys\.path\.(append|insert)|os\.environ\.(setdefault|update|pop)|(sys\.modules|os\.environ)\[.*\] = "
)
# Besides a command's own process: a pool's, the signals of a run, which undoes them, and the limit of open files.
OTHERS = {"util/pools.py", "training/checkpointing/signals.py", "util/open_files.py"}


def test_no_other_module_changes_the_process() -> None:
    package = ROOT / "tfpipe"
    texts = {str(path.relative_to(package)): path.read_text() for path in package.rglob("*.py")}
    found = {name for name, text in texts.items() if EFFECTS.search(text)}
    assert {name for name in found if not name.startswith("cli/")} == {"util/process.py", *OTHERS}


class Fault(Exception):
    pass


def test_output_is_redirected_and_comes_back_after_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    opened = os.listdir("/proc/self/fd")
    with pytest.raises(Fault), open(tmp_path / "log", "w") as log, redirect(1, log.fileno()) as before:
        os.write(1, b"inside\n")
        os.write(before, b"past it\n")
        raise Fault
    os.write(1, b"after\n")
    assert capfd.readouterr().out == "past it\nafter\n" and (tmp_path / "log").read_text() == "inside\n"
    assert os.listdir("/proc/self/fd") == opened


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_as_before_after_imports(collects: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        with pytest.raises(Fault), without_collections():
            with without_collections():
                pass
            assert not gc.isenabled()
            raise Fault
        assert gc.isenabled() == collects
    finally:
        (gc.enable if before else gc.disable)()


def test_the_log_is_dropped_inside_alone(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("tfpipe.test")
    with pytest.raises(Fault), without_log():
        logger.warning("once more")
        logger.error("new")
        raise Fault
    logger.warning("after")
    assert caplog.messages == ["new", "after"]


def test_nothing_is_collected_while_a_door_imports() -> None:
    code = (
        "import gc, sys\n"
        "seen = []\n"
        "class Watch:\n"
        "    def find_spec(self, name, *rest): seen.append((name, gc.isenabled()))\n"
        "import tfpipe, tfpipe.util.process\n"
        "sys.meta_path.insert(0, Watch())\n"
        "tfpipe.load_config\n"
        "assert ('tfpipe.config', False) in seen and gc.isenabled(), seen\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_dropped_output_stays_away() -> None:
    reader, writer = os.pipe()
    drop_output(writer)
    assert os.write(writer, b"gone") == 4 and os.read(reader, 1) == b""
    os.close(reader)
    os.close(writer)


def test_libraries_have_their_own_symbols_inside_alone() -> None:
    flags = sys.getdlopenflags()
    with pytest.raises(Fault), own_symbols():
        assert sys.getdlopenflags() == flags | os.RTLD_DEEPBIND
        raise Fault
    assert sys.getdlopenflags() == flags


def test_a_library_for_all_is_found_by_others() -> None:
    code = (
        "import ctypes, tfpipe.native as native\n"
        "assert not hasattr(ctypes.CDLL(None), 'tfpipe_native_version')\n"
        "native.core()\n"
        "assert ctypes.CDLL(None).tfpipe_native_version() == native.VERSION\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_main_module_has_no_file_inside_and_all_else() -> None:
    main = sys.modules["__main__"]
    with pytest.raises(Fault), hidden_main():
        hidden = sys.modules["__main__"]
        assert hidden is not main and not hasattr(hidden, "__file__") and hidden.__dict__["__name__"] == "__main__"
        assert hidden.__spec__ is main.__spec__ or hidden.__spec__ is None
        raise Fault
    assert sys.modules["__main__"] is main


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None], ids=["ignored", "own"])
def test_a_handler_that_a_library_replaces_is_restored(handler: object) -> None:
    before = signal.signal(signal.SIGUSR2, handler)
    try:
        with pytest.raises(Fault), kept_handler(signal.SIGUSR2):
            signal.signal(signal.SIGUSR2, signal.SIG_DFL)
            raise Fault
        assert signal.getsignal(signal.SIGUSR2) is handler
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_other_threads_keep_no_handler_and_raise_nothing() -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with kept_handler(signal.SIGUSR2):
                pass
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not errors


def test_a_call_that_holds_all_threads_ends_the_process_after_the_limit_alone() -> None:
    code = (
        "import time\n"
        "from tfpipe.util.process import ending_after\n"
        "with ending_after(1): pass\n"
        "time.sleep(1.2)\n"
        "print('goes on', flush=True)\n"
        "with ending_after(0.1): time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "goes on\n") and "line 6 in <module>" in done.stderr


def test_the_environment_is_set_for_addresses_and_not_against_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_grpc_proxy", "before")
    bypass_proxy(["10.0.0.1", "10.0.0.2", "10.0.0.1"])
    assert os.environ["no_grpc_proxy"] == "10.0.0.1,10.0.0.2"
    name = "OMPI_MCA_mpi_yield_when_idle"
    monkeypatch.setenv(name, "0")
    yield_when_idle()
    assert os.environ[name] == "0"
    monkeypatch.delenv(name)
    yield_when_idle()
    assert os.environ[name] == "1"
