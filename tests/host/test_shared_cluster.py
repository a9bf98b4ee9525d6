"""Which process simulates which device."""

import pytest

from fpgapipe.errors import UserError
from fpgapipe.host.transports.shared_cluster import owners_of
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.sim_tb.cluster.core_nodes import CoreCluster
from fpgapipe.sim_tb.native.phy import WireSpec

CORE = CoreSpec(4, 4)
QUICK, SLOW = (WireSpec(latency_cycles=cycles) for cycles in (3, 64))


def chain(*wires):
    """A chain of devices; which cores they have does not matter."""
    pairs = [((number, 1), (number + 1, 0)) for number in range(len(wires))]
    devices = len(wires) + 1
    return CoreCluster([CORE] * devices, [4096] * devices, [MemorySpec()] * devices, pairs, wires)


@pytest.mark.parametrize(
    ("ranks", "wires", "owners"),
    [
        (1, (QUICK, SLOW), [0, 0, 0]),
        (2, (QUICK, QUICK, SLOW, QUICK, QUICK), [0, 0, 0, 1, 1, 1]),
        (2, (SLOW, QUICK, QUICK, QUICK), [0, 1, 1, 1, 1]),
        (2, (SLOW, SLOW, SLOW), [0, 0, 1, 1]),
        (3, (SLOW, QUICK, SLOW), [0, 1, 1, 2]),
    ],
)
def test_nodes_of_a_board_are_of_one_process(ranks, wires, owners):
    assert owners_of(ranks, chain(*wires)) == owners


@pytest.mark.parametrize(
    ("ranks", "wires", "says"),
    [(3, (QUICK, SLOW, QUICK), "3 processes for 4 devices: at most 2"), (3, (SLOW,), "at most 2")],
)
def test_refuses_more_processes_than_boards(ranks, wires, says):
    with pytest.raises(UserError, match=says):
        owners_of(ranks, chain(*wires))
