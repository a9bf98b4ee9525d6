"""Benchmark of a device chain: simulated cores that pass their results on to the next core.

In each round, a core multiplies its operand by a matrix of its own. Meanwhile it receives the next
round's operand from the core before it, and sends the last round's result to the core after it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.isa.instructions import Instruction, Opcode
from fpgapipe.hw.hls_models.isa.program import Program
from fpgapipe.hw.hls_models.model.cluster import run_cluster
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.model.core_protocol import check_program, prepare_program
from fpgapipe.hw.hls_models.model.link_dma import packet
from fpgapipe.hw.hls_models.model.registers import SEED_BITS, RegisterMap
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec, LinkState
from fpgapipe.lowering.memory.placed import page
from fpgapipe.lowering.products.conv import ConvSpec
from fpgapipe.lowering.products.emit import Semaphore
from fpgapipe.lowering.program.layer_program import LayerProgram, lower_layer, random_operands
from fpgapipe.sim_tb.cluster.cluster import Cluster
from fpgapipe.sim_tb.cluster.core_nodes import CoreCluster
from fpgapipe.sim_tb.native.phy import WireSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fpgapipe.sim_tb.cluster.cluster_nodes import Connection, Node
    from fpgapipe.sim_tb.cluster.sampling import Sample

TO_PREVIOUS, TO_NEXT = 0, 1
"""Numbers of a core's links to the core before it and to the core after it."""

LINK_UP_CYCLES = 20_000
"""Cycles that links may take to come up, besides 20 times the latency of the slowest wire."""

_DONE, _SENT, _CAME, _LOADED = range(max(Semaphore) + 1, max(Semaphore) + 5)
"""Semaphores of a round: result stored, result sent, operand received, operand loaded."""


class LinkDown(UserError):
    """A link of a simulated cluster did not come up."""


@dataclass(frozen=True)
class Chain:
    """Programs of a chain of equal cores.

    Attributes
    ----------
    core : CoreSpec
    rounds : int
    programs : list of LayerProgram
        Program of each device. The result in memory is that of the last round.
    expected_cycles : int
        Approximate cycles of the run, from the cycle model of a single layer.
    """

    core: CoreSpec
    rounds: int
    programs: list[LayerProgram]
    expected_cycles: int

    def images(self, seed: int) -> list[NDArray[np.uint8]]:
        """Memories before the run; weights are scaled, so that results stay in range."""
        images = []
        for number, program in enumerate(self.programs):
            operands = random_operands(program, seed + number)
            operands["w"] = operands["w"] / np.float32(program.conv.cin**0.5)
            images.append(program.image(operands))
        return images

    @property
    def wiring(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Pairs of link ends that are joined, each as device and link number."""
        return [
            ((number, TO_NEXT), (number + 1, TO_PREVIOUS))
            for number in range(len(self.programs) - 1)
        ]

    def run_model(self, images: Sequence[NDArray[np.uint8]]) -> None:
        """Run the bit-exact model on the memories."""
        models = [CoreModel(self.core, image) for image in images]
        run_cluster(models, [program.instructions for program in self.programs], self.wiring)


def chain_core(rows: int, cols: int, link: LinkEngineSpec | None = None, **more: Any) -> CoreSpec:
    """Core with one link to the core before it and one to the core after it."""
    link = link or LinkEngineSpec()
    return CoreSpec(rows, cols, links=(link, link), **more)


def make_chain(
    core: CoreSpec,
    num_devices: int,
    rounds: int,
    vectors: int,
    width: int,
    memory: MemorySpec | None = None,
) -> Chain:
    """Lower the programs of a chain; each device computes a linear layer with a square matrix.

    Parameters
    ----------
    core : CoreSpec
        Core with two links, as `chain_core` makes it.
    num_devices, rounds : int
        Number of devices and of rounds, at least 1.
    vectors, width : int
        Number of vectors that a round multiplies, and of elements of each vector. The width must be
        a multiple of 32, so that an operand has a whole number of memory words.
    memory : MemorySpec, optional

    Raises
    ------
    ValueError
        If a number is out of range.
    NotImplementedError
        If no tiling of the layer fits the core.
    """
    if num_devices < 1 or rounds < 1:
        raise ValueError(
            f"a chain must have a device and a round or more, not {num_devices}, {rounds}"
        )
    if width < 32 or width % 32:
        raise ValueError(f"a chain's width must be a multiple of 32, not {width}")
    layer = lower_layer(ConvSpec.linear(vectors, width, width), "forward", core, memory=memory)
    programs = []
    for number in range(num_devices):
        instructions = Program.of(
            [
                *_rounds(layer, rounds, number > 0, number < num_devices - 1),
                Instruction(Opcode.END),
            ]
        )
        end = page(layer.entry + instructions.num_bytes)
        programs.append(replace(layer, instructions=instructions, memory_bytes=end))
    transfer = layer.tensors["y"].size_bytes / min(core.links[0].phy_bytes, 64)
    a_round = max(layer.tiled_product.prediction.cycles, round(transfer))
    return Chain(core, rounds, programs, (rounds + num_devices - 1) * a_round)


def _rounds(layer: LayerProgram, rounds: int, takes: bool, sends: bool) -> Iterator[Instruction]:
    """Instructions of all rounds of a device.

    `takes` and `sends` say whether it receives operands and whether it sends results.
    """
    body = layer.instructions[:-1]
    kinds = [item.opcode for item in body]
    first_load = kinds.index(Opcode.LOAD)
    last_load = len(kinds) - 1 - kinds[::-1].index(Opcode.LOAD)
    first_store = kinds.index(Opcode.STORE)
    last_store = len(kinds) - 1 - kinds[::-1].index(Opcode.STORE)
    x, y = layer.tensors["x"], layer.tensors["y"]
    for number in range(rounds):
        later = number > 0
        if takes:
            operand = packet(x.address, x.size_bytes, stream=number)
            wait = (_LOADED,) if later else ()
            yield Instruction(Opcode.RECEIVE, wait, (_CAME,), TO_PREVIOUS, operand)
        for index, item in enumerate(body):
            waits, signals = list(item.wait), list(item.signal)
            if index == first_load and takes:
                waits.append(_CAME)
            if index == last_load and takes and number < rounds - 1:
                signals.append(_LOADED)
            if index == first_store and sends and later:
                waits.append(_SENT)
            if index == last_store and sends:
                signals.append(_DONE)
            yield replace(item, wait=tuple(waits), signal=tuple(signals))
        if sends:
            result = packet(y.address, y.size_bytes, stream=number)
            signal = (_SENT,) if number < rounds - 1 else ()
            yield Instruction(Opcode.SEND, (_DONE,), signal, TO_NEXT, result)


def bring_up_links(cluster: Cluster, *, seed: int = 1) -> None:
    """Enable all links that are joined by wires, and wait until they are up.

    Raises
    ------
    LinkDown
        If a link does not come up.
    """
    ends = sorted({connection.source for connection in cluster.connections})
    for index, (number, link) in enumerate(ends):
        registers = _registers(cluster, number)
        first = (seed + 101 * index) % (1 << SEED_BITS)
        cluster.write_register(number, registers.offset(f"LINK{link}_SEED"), first)
        cluster.write_register(number, registers.offset(f"LINK{link}_ENABLE"), 1)
    longest = max((each.wire.delay_cycles for each in cluster.connections), default=0)
    last = cluster.cycle + LINK_UP_CYCLES + 20 * longest
    for number, link in ends:
        status = _registers(cluster, number)[f"LINK{link}_STATUS"]
        while True:
            value = cluster.read_register(number, status.offset)
            state = LinkState(status.field("state").of(value))
            if state is LinkState.UP:
                break
            if state is LinkState.MISMATCH or cluster.cycle > last:
                name = cluster.nodes[number].name
                raise LinkDown(f"link {link} of {name} did not come up: it is in {state.name}")
            cluster.run(64, until_irq=False)


def start_programs(cluster: Cluster, programs: Sequence[LayerProgram]) -> int:
    """Start a program on each device; return the cycle of the first start command."""
    for number, program in enumerate(programs):

        def write(address: int, value: int, number: int = number) -> None:
            cluster.write_register(number, address, value)

        registers = _registers(cluster, number)
        prepare_program(write, registers, program.entry, program.memory_bytes)
    begin = cluster.cycle
    for number in range(len(programs)):
        control = _registers(cluster, number)["CONTROL"]
        cluster.write_register(number, control.offset, control.field("start").mask)
    return begin


def check_programs(cluster: Cluster) -> None:
    """Check that all programs have ended without an error.

    Raises
    ------
    DeviceStopped
        If a program has stopped with an error.
    """
    for number in range(len(cluster.nodes)):
        check_program(
            lambda address, number=number: cluster.read_register(number, address),  # type: ignore[misc]
            _registers(cluster, number),
        )


def _registers(cluster: Cluster, number: int) -> RegisterMap:
    registers = cluster.nodes[number].registers
    assert registers is not None
    return registers


@dataclass(frozen=True)
class ClusterBench:
    """Results of `bench_chain`; ``to_dict`` gives them for JSON.

    Attributes
    ----------
    threads, window_cycles : int
        Number of threads and size of a window that the simulation used (`Cluster`).
    cycles : int
        Cycles from the command that starts the first program to the end of the last program.
    ends : tuple of int
        Cycle of each device's interrupt, counted from the reset.
    digest : str
        SHA-256 of `ends` and all memories.
    matches_model : bool
        Whether all memories equal those of the bit-exact model.
    words : int
        Number of words that crossed links, without repetitions.
    replays : int
        Number of frames that were sent again.
    simulated_cycles : int
        Cycles from the reset, including the start of the links.
    wall_s, cpu_s : float
        Wall time of the run alone, and processor time of all threads, in seconds.
    samples : list of Sample
        Samples of the counters; empty if none were asked for.
    """

    chain: Chain
    threads: int
    window_cycles: int
    cycles: int
    ends: tuple[int, ...]
    digest: str
    matches_model: bool
    words: int
    replays: int
    simulated_cycles: int
    wall_s: float
    cpu_s: float
    samples: list[Sample]

    def to_dict(self) -> dict[str, Any]:
        """Values of the results, by name."""
        core, number = self.chain.core, len(self.chain.programs)
        macs = sum(program.conv.macs for program in self.chain.programs) * self.chain.rounds
        return {
            "devices": number,
            "rows": core.rows,
            "cols": core.cols,
            "rounds": self.chain.rounds,
            "threads": self.threads,
            "window_cycles": self.window_cycles,
            "cycles": self.cycles,
            "macs": macs,
            "utilisation": macs / (self.cycles * core.array.cells * number),
            "link_words": self.words,
            "replays": self.replays,
            "matches_model": self.matches_model,
            "digest": self.digest,
            "device_cycles_per_s": self.cycles * number / self.wall_s,
            "wall_s": self.wall_s,
            "cpu_s": self.cpu_s,
        }


def chain_nodes(
    chain: Chain, images: Sequence[NDArray[np.uint8]], memory: MemorySpec, wire: WireSpec
) -> tuple[list[Node], list[Connection]]:
    """Make the chain's simulated devices; cables are equal to `wire` but for their seeds."""
    devices = len(images)
    described = CoreCluster(
        [chain.core] * devices,
        [image.size for image in images],
        [memory] * devices,
        chain.wiring,
        [replace(wire, seed=wire.seed + 2 * number) for number in range(len(chain.wiring))],
    )
    nodes = [described.node(number)[1] for number in range(devices)]
    for node, image in zip(nodes, images, strict=True):
        node.device.memory[:] = image
    return nodes, described.connections


def open_chain(
    chain: Chain,
    images: Sequence[NDArray[np.uint8]],
    memory: MemorySpec,
    wire: WireSpec,
    **options: Any,
) -> Cluster:
    """Make the cluster of a chain; the options are those of `Cluster`."""
    return Cluster(*chain_nodes(chain, images, memory, wire), **options)


def bench_chain(
    chain: Chain,
    *,
    wire: WireSpec | None = None,
    memory: MemorySpec | None = None,
    seed: int = 0,
    threads: int | None = None,
    window_cycles: int | None = None,
    sample_cycles: int = 0,
    progress: Callable[[int], object] | None = None,
) -> ClusterBench:
    """Run a chain on simulated devices and compare their memories with the bit-exact model's.

    Parameters
    ----------
    chain : Chain
    wire : WireSpec, optional
        Wire of all links, in both directions.
    memory : MemorySpec, optional
        Memory of each device.
    seed : int
        Seed of the random data.
    threads, window_cycles, progress
        Arguments of `Cluster` and of its method `run`.
    sample_cycles : int
        Approximate number of cycles from sample to sample of all counters; 0 for no samples.

    Raises
    ------
    LinkDown, DeviceStopped, StallError
        If a link does not come up, a program stops with an error, or the devices stall.
    """
    memory = memory or MemorySpec()
    wire = wire or WireSpec(phy_bytes=chain.core.links[0].phy_bytes)
    images = chain.images(seed)
    registers = RegisterMap(chain.core)
    with open_chain(
        chain, images, memory, wire, threads=threads, window_cycles=window_cycles
    ) as cluster:
        bring_up_links(cluster)
        begin = start_programs(cluster, chain.programs)
        if sample_cycles:
            counters = dict.fromkeys(range(len(images)), registers.counters)
            cluster.sample(sample_cycles, counters)
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        cluster.run(progress=progress)
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        ends = tuple(node.device.statistics.irq_cycle or 0 for node in cluster.nodes)
        memories = [node.device.memory for node in cluster.nodes]
        digest = hashlib.sha256(str(ends).encode())
        for each in memories:
            digest.update(each.data)
        samples, simulated = cluster.samples, cluster.cycle
        check_programs(cluster)
        words, replays = (
            sum(
                cluster.read_register(number, registers.offset(f"LINK{link}_{name}_LO"))
                for number, link in {each.source for each in cluster.connections}
            )
            for name in ("RX_WORDS", "REPLAYS")
        )
        used_threads, window = cluster.threads, cluster.window_cycles
    chain.run_model(images)
    matches = all(map(np.array_equal, memories, images))
    return ClusterBench(
        chain,
        used_threads,
        window,
        max(ends) - begin,
        ends,
        digest.hexdigest(),
        matches,
        words,
        replays,
        simulated,
        wall_s,
        cpu_s,
        samples,
    )
