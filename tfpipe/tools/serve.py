"""A server of `data.service`: a dispatcher and a worker of tf.data service in this process."""

import contextlib
import ctypes
import os
import signal
import socket
import threading
import time

from tfpipe.errors import ConfigError

LOOK_S = 0.5
# Of malloc.h; a threshold that is set no longer grows by itself.
M_MMAP_THRESHOLD, MMAP_BYTES = -3, 1_000_000
# What ends a training, or asks it to save its state and end, often goes to all processes of a job.
LEFT_TO_PARENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def end_with(parent: int) -> None:
    """Ends this process within a second of its parent's end, however that came, and not before."""
    for each in LEFT_TO_PARENT:
        signal.signal(each, signal.SIG_IGN)

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        os._exit(0)

    threading.Thread(target=look, name="parent", daemon=True).start()


class Server:
    """Serves from the moment that it is made."""

    def __init__(self, port: int, data_port: int, host: str | None = None, threads: int | None = None) -> None:
        """Starts it.

        Args:
            port: on which clients ask for it; 0 for any that is free.
            data_port: on which it sends; 0 likewise.
            host: the name or address by which clients reach this host; None for its own name.
            threads: of all pipelines; None for as many as there are CPUs.

        Raises:
            ConfigError: a port is taken.
        """
        for each in filter(None, (port, data_port)):
            _check_free(each)
        _give_back()
        import tensorflow as tf
        from tensorflow.data.experimental import service

        tf.config.threading.set_inter_op_parallelism_threads(threads or len(os.sched_getaffinity(0)))
        host = host or socket.gethostname()
        self._dispatcher = service.DispatchServer(service.DispatcherConfig(port=port))
        port = int(self._dispatcher.target.rsplit(":", 1)[1])
        self._worker = service.WorkerServer(
            service.WorkerConfig(
                dispatcher_address=f"localhost:{port}",
                worker_address=f"{host}:%port%",
                port=data_port,
                # Clients' tasks come with a heartbeat: the first batch waits for one.
                heartbeat_interval_ms=500,
            )
        )
        self.address = f"{host}:{port}"

    def join(self) -> None:
        """Waits for ever."""
        self._worker.join()


def _check_free(port: int) -> None:
    """Two servers may listen on one port, as gRPC has it, and would take each other's clients."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise ConfigError(f"cannot serve on port {port}: {error.strerror}; give another --port") from error


def _give_back() -> None:
    """Has glibc return what the graphs' tables took on their way: TensorFlow makes a dozen copies of them."""
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MMAP_BYTES)
