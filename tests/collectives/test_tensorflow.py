"""How TensorFlow's collectives divide tensors into messages, and which addresses ranks give each other.

tests/test_mpi.py has the collectives themselves, on ranks that mpirun has started.
"""

from pathlib import Path

import pytest
import tensorflow as tf

from tests.support.commands import WARM, finish, start
from tfpipe.collectives import tensorflow as collectives
from tfpipe.collectives.tensorflow import buckets, reachable


def test_messages_hold_each_tensor_once_the_last_first_and_of_one_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "BUCKET_BYTES", 100)
    sizes = [(tf.float32, 3), (tf.float32, 30), (tf.float16, 1), (tf.float16, 1), (tf.float32, 1), (tf.float32, 0)]
    kinds = [(dtype, tf.TensorShape([size])) for dtype, size in sizes]
    assert list(buckets(kinds)) == [[5, 4], [3, 2], [1], [0]]
    assert list(buckets([])) == []


@pytest.mark.parametrize(
    ("own", "leader", "expected"),
    [
        pytest.param(["", "127.0.0.1"], ["", "127.0.0.1"], ["127.0.0.1"] * 2, id="one-host"),
        pytest.param(["", "10.0.0.2"], ["", "10.0.0.1"], ["10.0.0.1", "10.0.0.2"], id="two-hosts"),
        # Rank 1 is on rank 0's host, whose name its own resolver gives as 127.0.1.1.
        pytest.param(
            ["", "127.0.0.1", "10.0.0.2"],
            ["", "127.0.1.1", "10.0.0.1"],
            ["10.0.0.1", "10.0.0.1", "10.0.0.2"],
            id="both",
        ),
        pytest.param(["", "[fd00::2]"], ["", "[fd00::1]"], ["[fd00::1]", "[fd00::2]"], id="ipv6"),
        pytest.param(["", "[::1]"], ["", "[::1]"], ["127.0.0.1"] * 2, id="one-host-ipv6"),
    ],
)
def test_ranks_get_addresses_that_all_others_reach(own: list[str], leader: list[str], expected: list[str]) -> None:
    assert reachable(own, leader) == expected


TAKEN = """
import socket, sys
from pathlib import Path
from types import SimpleNamespace
from tfpipe import World
from tfpipe.collectives import tensorflow as own
own.START_S = 5
world = World.tensorflow(Path(sys.argv[1]))
if world.rank == 1:
    taken = socket.create_server(("", 0))
    class Free:
        __enter__ = lambda self: taken
        __exit__ = lambda self, *error: None
    own.socket = SimpleNamespace(create_server=lambda address: Free())
world.tensors.start()
"""


@pytest.mark.full("waits for a limit")
def test_a_port_that_is_taken_ends_all_ranks(tmp_path: Path) -> None:
    """TensorFlow itself would let the others wait without a limit."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    ranks = [start(*WARM, "-c", TAKEN, tmp_path, RANK=str(rank), **shared) for rank in range(2)]
    first, second = (finish(rank) for rank in ranks)
    assert (first.code, second.code) == (1, 1)
    assert "rank 1: TensorFlow's collectives cannot start at 127.0.0.1:" in second.err
    assert "Timeout (0:00:05)!" in first.err and "in start" in first.err
