"""Clusters whose devices belong to several ranks: the same results for any number of them."""

import json
import queue
import subprocess
import sys
import threading
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from launchers import mpiexec
from link_designs import DIGEST, FAULT, FAULTS, RECEIVED, SENDS, STEP, UNTIL, LinkDesign
from test_cluster import BAD_WIRE, TWO_ISLANDS, mesh

from fpgapipe.hw.rtl.verilog import verilog_of
from fpgapipe.sim_tb.cluster.cluster import Cluster
from fpgapipe.sim_tb.cluster.cluster_library import Reason
from fpgapipe.sim_tb.cluster.cluster_nodes import MAX_WINDOW_CYCLES, Node
from fpgapipe.sim_tb.cluster.ranks import RankedCluster
from fpgapipe.sim_tb.native.native import DeviceError, NativeDevice, build_native

pytestmark = pytest.mark.sim


@pytest.fixture(scope="module")
def library():
    return build_native(verilog_of(LinkDesign()))


class Threads:
    """The part of MPI that a rank needs, for ranks that are threads of one process."""

    def __init__(self, rank, size, shared):
        self.rank, self.size, self._shared = rank, size, shared

    def allgather(self, sendobj):
        self._shared["values"][self.rank] = sendobj
        self._shared["barrier"].wait(60)
        found = list(self._shared["values"])
        self._shared["barrier"].wait(60)
        return found

    def bcast(self, obj, root=0):
        return self.allgather(obj)[root]

    def send(self, obj, dest):
        self._shared["sent"][self.rank, dest].put(obj)

    def recv(self, source):
        return self._shared["sent"][source, self.rank].get(timeout=60)


def in_ranks(size, job):
    """Results of a function that each rank calls with its communicator."""
    pairs = product(range(size), repeat=2)
    shared = {
        "values": [None] * size,
        "barrier": threading.Barrier(size),
        "sent": {pair: queue.Queue() for pair in pairs},
    }
    found, errors = [None] * size, [None] * size

    def run(rank):
        try:
            found[rank] = job(Threads(rank, size, shared))
        except Exception as error:  # it is what the test looks at
            errors[rank] = error

    ranks = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    return found, errors


def nodes_of(library, numbers):
    return {n: Node(f"d{n}", NativeDevice(library), awaited=n == 0) for n in numbers}


def to_the_end(one, stall_cycles=200_000):
    """Run until node 0 has ended; returns the cycles."""
    begin = one.cycle
    one.begin(stall_cycles)
    while (reason := one.go(0.01)) is Reason.TIME:
        pass
    assert reason is Reason.INTERRUPTS
    return one.cycle - begin


def results(one, run=to_the_end):
    """Run loads on all links until node 0 has received enough; what becomes of it."""
    for index in range(4):
        for port in range(3):
            one.write_register(index, STEP * port + SENDS, 600 + 100 * port + index)
    one.write_register(0, UNTIL, 500)
    found = [run(one), one.cycle, one.irq_cycles()]
    for index in range(4):
        for port in range(3):
            found += [one.read_register(index, STEP * port + at) for at in (DIGEST, RECEIVED)]
    return [*found, one.cycle]


def ranked(comm, library, owners, latency=80, **options):
    own = [number for number, owner in enumerate(owners) if owner == comm.rank]
    return RankedCluster(comm, owners, nodes_of(library, own), mesh(latency, **BAD_WIRE), **options)


def alone(library, latency=80):
    """Results of a cluster in one process."""
    with Cluster(list(nodes_of(library, range(4)).values()), mesh(latency, **BAD_WIRE)) as one:
        return results(one)


@pytest.mark.parametrize(
    ("owners", "latency"),
    [
        *product([(0,) * 4, (0, 0, 1, 1), (1, 0, 0, 1), (0, 1, 2, 2), (3, 2, 1, 0)], [80]),
        *product([(0, 0, 1, 1), (1, 1, 0, 0)], [TWO_ISLANDS]),
    ],
)
def test_the_result_does_not_depend_on_the_ranks(library, owners, latency):
    """Digests of beats and their cycles, on wires with all kinds of errors."""

    def job(comm):
        one = ranked(comm, library, owners, latency, threads=1 + comm.rank % 2)
        found = results(one)
        one.close()
        return found

    found, errors = in_ranks(max(owners) + 1, job)
    assert errors == [None] * len(errors)
    expected = alone(library, latency)
    assert expected[2][0] is not None
    assert all(each == expected for each in found)


def test_errors_are_those_of_all_ranks(library):
    """A rule that a device of one rank breaks, and a cluster in which nothing moves."""

    def broken(comm):
        one = ranked(comm, library, (0, 1, 1, 1))
        one.write_register(2, FAULT, 1 << FAULTS.index("data"))
        return results(one)

    _, errors = in_ranks(2, broken)
    assert {str(each) for each in errors} == {str(errors[0])}
    assert isinstance(errors[0], DeviceError)
    assert "d2: cycle" in str(errors[0])
    assert "m_axis_link0_tdata, tkeep or tlast changed" in str(errors[0])

    def stalled(comm):
        one = ranked(comm, library, (0, 1, 1, 1))
        one.write_register(0, UNTIL, 500)
        one.begin(4000)
        return one.go(600.0), one.cycle - one.moved

    found, errors = in_ranks(2, stalled)
    assert errors == [None, None]
    assert {reason for reason, _ in found} == {Reason.STALLED}
    assert all(4000 <= quiet < 4000 + MAX_WINDOW_CYCLES for _, quiet in found)


def test_rank_0_stops_all(library):
    """They stand at the same cycle and go on to what an undisturbed run finds."""

    def job(comm):
        one = ranked(comm, library, (0, 0, 1, 1))

        def run(one):
            stops = iter((False, False, True))
            one.begin(200_000)
            reason = one.go(60.0, lambda: comm.rank == 0 and next(stops))
            assert reason is Reason.TIME
            return to_the_end(one) + 2 * one.window_cycles

        return results(one, run)

    found, errors = in_ranks(2, job)
    assert errors == [None, None]
    expected = alone(library)
    # The run ends at a border of windows, which the stop has not moved.
    assert found == [expected, expected]


def test_memories_of_other_ranks(library):
    """Rank 0 alone has the bytes that are written, and gets those that are read."""
    data = np.arange(256, dtype=np.uint8)

    def job(comm):
        owners = (0, 1, 2, 1)
        own = [number for number, owner in enumerate(owners) if owner == comm.rank]
        nodes = {n: Node(f"d{n}", NativeDevice(library), awaited=n == 0) for n in own}
        for node in nodes.values():
            node.device.memory = np.zeros(512, np.uint8)
        one = RankedCluster(comm, owners, nodes, mesh(80))
        for number in range(4):
            one.write_memory(number, 100, data + number if not comm.rank else None)
        found = [one.read_memory(number, 99, 258) for number in range(4)]
        assert all(node.device.memory.any() for node in nodes.values())
        return found

    found, errors = in_ranks(3, job)
    assert errors == [None] * 3
    for number in range(4):
        np.testing.assert_array_equal(found[0][number], np.pad(data + number, 1))


@pytest.mark.parametrize(
    ("owners", "latency", "says"),
    [
        ((0, 0, 0, 0), 80, r"^each of 2 ranks must have a node of 4$"),
        ((0, 0, 1, 1), 62, r"^wires between ranks need 64 cycles or more, not 63$"),
        ((0, 1, 1, 1), TWO_ISLANDS, r"^wires between ranks need 64 cycles or more, not 1$"),
    ],
)
def test_refuses(library, owners, latency, says):
    _, errors = in_ranks(2, lambda comm: ranked(comm, library, owners, latency))
    for each in errors:
        assert isinstance(each, ValueError)
        with pytest.raises(ValueError, match=says):
            raise each


PROGRAM = """
import json, sys
sys.path[:0] = json.loads(sys.argv[2])
from pathlib import Path
from mpi4py import MPI
import test_ranks
from fpgapipe.sim_tb.cluster.rank_messages import PACKET_BYTES, Ranks
comm = Ranks(MPI.COMM_WORLD)
for length in (1, PACKET_BYTES // 2, PACKET_BYTES - 8, PACKET_BYTES, 3 * PACKET_BYTES):
    sent = [bytes([rank]) * (length if rank % 2 else 1) for rank in range(comm.size)]
    assert comm.allgather(sent[comm.rank]) == sent
    for root in range(comm.size):
        assert comm.bcast(sent[comm.rank], root) == sent[root]
one = test_ranks.ranked(comm, Path(sys.argv[1]), tuple(n * comm.size // 4 for n in range(4)))
found = test_ranks.results(one)
if comm.rank == 0:
    print(json.dumps(found))
"""


@pytest.mark.parametrize("size", [1, 2, 4])
def test_over_mpi(library, size, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [*mpiexec(size), sys.executable, tmp_path / "program.py", library]
    command.append(json.dumps([str(Path(__file__).parent), *sys.path[1:]]))
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == alone(library)
