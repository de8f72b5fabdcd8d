"""The simulation of thousands of ranks agrees with what was measured, and with what a bottleneck allows."""

import runpy
from typing import Any

import numpy as np
import pytest

from tests.support.commands import ROOT


@pytest.fixture(scope="module")
def simulation() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "profiles/scale/simulation.py"))


def cluster(simulation: dict[str, Any], **keys: Any) -> Any:
    """Ranks whose reads take 10 ms and whose images 1 ms of a core."""
    times = simulation["Times"]
    return simulation["Cluster"](
        **{"ranks": 4, "storage_s": times(np.full(3, 0.01)), "decode_s": times(np.full(3, 1e-3))} | keys
    )


def test_it_is_within_ten_percent_of_what_was_measured(
    simulation: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulation["check"](), capsys.readouterr().out
    assert capsys.readouterr().out.count("measured") == 9


@pytest.mark.parametrize(
    ("keys", "rate"),
    [
        # 32 ms of decoding, in which 4 reads end, and 28 reads of 10 ms, 4 at once: 102 ms for 32 images of each rank.
        ({"cores": 4.0, "ranks_per_node": 4}, 4 * 32 / 0.102),
        # Two cores for all: each rank's call takes its turn.
        ({"cores": 2.0, "ranks_per_node": 4, "reads": 256}, 2000),
        ({"cores": 4.0, "ranks_per_node": 4, "reads": 256, "opens": 2, "opens_per_s": 1000}, 500),
        ({"cores": 4.0, "ranks_per_node": 4, "reads": 256, "reads_per_s": 300}, 300),
        # A step of 160 ms, and 2 hops of 20 ms: 16 images of each rank in 200 ms.
        ({"cores": 4.0, "ranks_per_node": 4, "reads": 256, "step_s": 0.16, "hop_s": 0.02}, 4 * 16 / 0.2),
    ],
    ids=["reads", "cores", "metadata", "disks", "allreduce"],
)
def test_the_narrowest_resource_sets_the_rate(simulation: dict[str, Any], keys: dict[str, Any], rate: float) -> None:
    assert simulation["simulate"](cluster(simulation, **keys), 200) == pytest.approx(rate, rel=0.05)


def test_one_slow_node_slows_all(simulation: dict[str, Any]) -> None:
    nodes = cluster(simulation, ranks=64)
    slow = cluster(simulation, ranks=64, straggler=0.01)
    assert simulation["simulate"](nodes) / simulation["simulate"](slow) == pytest.approx(2, rel=0.05)
