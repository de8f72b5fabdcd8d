"""A worker of `data.service`: a tf.data service dispatcher and worker in this process."""

import contextlib
import ctypes
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator

from tfpipe.errors import ConfigError
from tfpipe.native import native
from tfpipe.util.resources import usable_cpus

logger = logging.getLogger(__name__)

LOOK_S = 0.5
# Parameters of glibc's mallopt (malloc.h). A block of at least MMAP_BYTES, 32 MiB at most, is given back to the system
# when it is freed; of smaller ones, as batches are, TRIM_BYTES of freed memory stay for the next one. With a threshold
# of 1 MB alone each batch took fresh pages: 2 workers had 0.43 of one process's rate, now 0.61 (profiles/compare).
M_TRIM_THRESHOLD, TRIM_BYTES = -1, 256 << 20
M_TOP_PAD, TOP_PAD_BYTES = -2, 64 << 20
M_MMAP_THRESHOLD, MMAP_BYTES = -3, 32 << 20
# Bytes that a network interface's name may take.
IFNAMSIZ = 16


def exit_with_parent(parent: int) -> None:
    """Ends this process within a second of its parent's end, for any cause, and not before."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        os._exit(0)

    threading.Thread(target=look, name="parent", daemon=True).start()


class Server:
    """A dispatcher and a worker that serve from construction on."""

    def __init__(self, port: int, data_port: int, host: str | None = None, threads: int | None = None) -> None:
        """Starts the dispatcher and the worker.

        Args:
            port: port that clients connect to; 0: any free port.
            data_port: port that sends batches; 0: any free port.
            host: name or address by which clients reach this host; None for its own name. With "localhost", connections
                from other hosts are refused; otherwise a warning says what an open port allows.
            threads: threads for all pipelines; None for one per CPU that this process may use.

        Raises:
            ConfigError: a port is taken.
        """
        for number in filter(None, (port, data_port)):
            _check_free(number)
        _set_malloc()
        import tensorflow as tf
        from tensorflow.data.experimental import service

        native()  # the graphs that clients send have its ops

        tf.config.threading.set_inter_op_parallelism_threads(threads or usable_cpus())
        host = host or socket.gethostname()
        self._dispatcher = service.DispatchServer(service.DispatcherConfig(port=port))
        if host == "localhost":
            _refuse_other_hosts()
        port = int(self._dispatcher.target.rsplit(":", 1)[1])
        self._worker = service.WorkerServer(
            service.WorkerConfig(
                dispatcher_address=f"localhost:{port}",
                worker_address=f"{host}:%port%",
                port=data_port,
                # The worker receives its tasks with a heartbeat, so the first batch waits for one.
                heartbeat_interval_ms=500,
            )
        )
        if host == "localhost":
            _refuse_other_hosts()
        _warn_of_open_ports()
        self.address = f"{host}:{port}"

    def join(self) -> None:
        """Blocks until the process ends."""
        self._worker.join()


def _check_free(port: int) -> None:
    """Checks that no other server has the port: gRPC lets two share one, and they would take each other's clients."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise ConfigError(f"cannot serve on port {port}: {error.strerror}; give another --port") from error


def _refuse_other_hosts() -> None:
    """Restricts the ports of this process to connections from this host.

    TensorFlow's servers always listen on all addresses; their only protocol, "grpc", has neither TLS nor a password.
    """
    with contextlib.suppress(PermissionError):  # Linux before 5.7, without privileges
        for listener in _listeners():
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")


def _warn_of_open_ports() -> None:
    """Logs a warning if other hosts can connect to this process."""
    ports = {
        listener.getsockname()[1]
        for listener in _listeners()
        if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, IFNAMSIZ)
    }
    if ports:
        logger.warning(
            "data.service: any process that reaches port %s of this host can read and write files as this user, since "
            "TensorFlow's service asks for no password: use a network that you trust, or --host localhost, which "
            "refuses other hosts, with an SSH tunnel (docs/service.md)",
            " or ".join(map(str, sorted(ports))),
        )


def _listeners() -> Iterator[socket.socket]:
    """Yields the TCP sockets on which this process listens."""
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            listener = socket.socket(fileno=number)
        except OSError:  # not a socket, or closed meanwhile
            continue
        try:
            inet = listener.family in (socket.AF_INET, socket.AF_INET6)
            if inet and listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                yield listener
        finally:
            listener.detach()  # belongs to gRPC


def _set_malloc() -> None:
    """Makes glibc return large blocks, e.g. the temporary copies of the graphs' tables, and keep those of batches."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, TRIM_BYTES)
        mallopt(M_TOP_PAD, TOP_PAD_BYTES)
        mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)
