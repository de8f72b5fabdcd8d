"""The ports of a worker: who may connect to them."""

import socket

import pytest

from tfpipe.data.service.server import _refuse_other_hosts, _warn_of_open_ports


def test_other_hosts_are_refused(outward_address: str, caplog: pytest.LogCaptureFixture) -> None:
    """A server that knows no address to bind, as TensorFlow's; the sockets of the system decide, not the server."""
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        socket.create_connection((outward_address, port)).close()
        _warn_of_open_ports()
        assert str(port) in caplog.text and "can read and write files as this user" in caplog.text
        caplog.clear()
        _refuse_other_hosts()
        _warn_of_open_ports()
        assert str(port) not in caplog.text
        socket.create_connection(("127.0.0.1", port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((outward_address, port))
