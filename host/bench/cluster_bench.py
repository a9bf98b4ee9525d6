"""A chain of simulated cores that pass their results on: programs, one run, what it found.

Each core multiplies what it gets by a matrix of its own, round by round, while it takes the next
round's operand from the core before it and sends the last round's result to the one after it.
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
from fpgapipe.hw.hls_models.isa.instructions import Instruction, Opcode, encode
from fpgapipe.hw.hls_models.model.cluster import run_cluster
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.hw.hls_models.model.link_dma import packet
from fpgapipe.hw.hls_models.model.registers import SEED_BITS, RegisterMap
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec, LinkState
from fpgapipe.lowering.memory.placed import page
from fpgapipe.lowering.products.conv import ConvSpec
from fpgapipe.lowering.products.emit import Semaphore
from fpgapipe.lowering.program.layer_program import LayerProgram, lower_layer, random_operands
from fpgapipe.sim_tb.native.core_device import build_device, check_program, prepare_program
from fpgapipe.sim_tb.native.phy import WireSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fpgapipe.sim_tb.cluster.cluster import Cluster, Progress
    from fpgapipe.sim_tb.cluster.cluster_nodes import Connection
    from fpgapipe.sim_tb.cluster.sampling import Sample
    from fpgapipe.sim_tb.native.native import NativeDevice

TO_PREVIOUS, TO_NEXT = 0, 1
"""Links of a core in a chain."""

LINK_UP_CYCLES = 20_000
"""How long links may take to come up, besides the wire's latency, many times over."""

_DONE, _SENT, _CAME, _LOADED = range(max(Semaphore) + 1, max(Semaphore) + 5)
"""Semaphores: a round's result is stored, or sent; its operand has come, or is on chip."""


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
        One a device. Their results are those of the last round.
    expected_cycles : int
        About, from the models of single layers.
    """

    core: CoreSpec
    rounds: int
    programs: list[LayerProgram]
    expected_cycles: int

    def images(self, seed: int) -> list[NDArray[np.uint8]]:
        """Memories before the run; the weights are scaled, so that results stay in range."""
        images = []
        for number, program in enumerate(self.programs):
            operands = random_operands(program, seed + number)
            operands["w"] = operands["w"] / np.float32(program.conv.cin**0.5)
            images.append(program.image(operands))
        return images

    @property
    def wiring(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """Ends of links that are joined."""
        return [
            ((number, TO_NEXT), (number + 1, TO_PREVIOUS))
            for number in range(len(self.programs) - 1)
        ]

    def run_model(self, images: Sequence[NDArray[np.uint8]]) -> None:
        """Run the bit-exact model on the memories."""
        models = [CoreModel(self.core, image) for image in images]
        run_cluster(models, [program.instructions for program in self.programs], self.wiring)


def chain_core(rows: int, cols: int, link: LinkEngineSpec | None = None, **more: Any) -> CoreSpec:
    """Core with a link to the one before it and one to the one after it."""
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
    """Lower a chain of square layers.

    Parameters
    ----------
    core : CoreSpec
        As of `chain_core`.
    num_devices, rounds : int
        At least 1.
    vectors, width : int
        A round multiplies so many vectors of so many elements; 32 divides the width, so that an
        operand is whole words.
    memory : MemorySpec, optional

    Raises
    ------
    ValueError
        If a number is out of range.
    NotImplementedError
        If no cut of the layer fits the core.
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
        instructions = [
            *_rounds(layer, rounds, number > 0, number < num_devices - 1),
            Instruction(Opcode.END),
        ]
        end = page(layer.entry + len(encode(instructions)))
        programs.append(replace(layer, instructions=instructions, memory_bytes=end))
    transfer = layer.tensors["y"].size_bytes / min(core.links[0].phy_bytes, 64)
    a_round = max(layer.tiled_product.prediction.cycles, round(transfer))
    return Chain(core, rounds, programs, (rounds + num_devices - 1) * a_round)


def _rounds(layer: LayerProgram, rounds: int, takes: bool, sends: bool) -> Iterator[Instruction]:
    """All rounds of a device that takes operands, or sends results, or both."""
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


def chain_wires(chain: Chain, wire: WireSpec) -> tuple[Connection, ...]:
    """Cables of a chain, all as `wire` but for their seeds."""
    from fpgapipe.sim_tb.cluster.cluster_nodes import cable

    found: tuple[Connection, ...] = ()
    for number, (one, other) in enumerate(chain.wiring):
        found += cable(one, other, replace(wire, seed=wire.seed + 2 * number))
    return found


def bring_up_links(cluster: Cluster, *, seed: int = 1) -> None:
    """Turn on all links that wires join, and wait until they are up.

    Raises
    ------
    LinkDown
        If one does not come up.
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
    """Start a program on each device; the cycle in which the first was told to."""
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
    """See that all programs have ended well.

    Raises
    ------
    DeviceStopped
        If one has not.
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
    """What `bench_chain` found; ``to_dict`` for JSON.

    Attributes
    ----------
    cycles : int
        From the command that starts the first program to the end of the last.
    ends : tuple of int
        Cycle of each device's interrupt, since the reset.
    digest : str
        SHA-256 of all memories and `ends`.
    matches_model : bool
        Whether all memories are as the bit-exact model leaves them.
    words : int
        That crossed links, each counted once.
    replays : int
        Frames that were sent again.
    simulated_cycles : int
        Since the reset, links' start included.
    wall_s, cpu_s : float
        Seconds of the run alone, and of all threads' processor time.
    samples : list of Sample
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
        """The figures."""
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
            "utilisation": macs / (self.cycles * core.rows * core.cols * number),
            "link_words": self.words,
            "replays": self.replays,
            "matches_model": self.matches_model,
            "digest": self.digest,
            "device_cycles_per_s": self.cycles * number / self.wall_s,
            "wall_s": self.wall_s,
            "cpu_s": self.cpu_s,
        }


def open_devices(
    chain: Chain, images: Sequence[NDArray[np.uint8]], memory: MemorySpec
) -> list[NativeDevice]:
    """Make the chain's simulated devices."""
    from fpgapipe.sim_tb.native.native import NativeDevice

    library, _, _ = build_device(chain.core)
    devices = []
    for image in images:
        device = NativeDevice(
            library,
            memory_bytes=image.size,
            bytes_per_cycle=memory.bytes_per_cycle,  # type: ignore[arg-type]
            latency_cycles=memory.latency_cycles,
        )
        device.memory[:] = image
        devices.append(device)
    return devices


def open_chain(
    chain: Chain,
    images: Sequence[NDArray[np.uint8]],
    memory: MemorySpec,
    wire: WireSpec,
    **options: Any,
) -> Cluster:
    """Make a cluster of a chain; options as of `Cluster`."""
    from fpgapipe.sim_tb.cluster.cluster import Cluster
    from fpgapipe.sim_tb.cluster.cluster_nodes import Node

    registers = RegisterMap(chain.core)
    nodes = [
        Node(f"device{number}", device, registers)
        for number, device in enumerate(open_devices(chain, images, memory))
    ]
    return Cluster(nodes, chain_wires(chain, wire), **options)


def bench_chain(
    chain: Chain,
    *,
    wire: WireSpec | None = None,
    memory: MemorySpec | None = None,
    seed: int = 0,
    threads: int | None = None,
    window_cycles: int | None = None,
    sample_cycles: int = 0,
    progress: Callable[[Progress], object] | None = None,
) -> ClusterBench:
    """Run a chain on simulated devices and compare their memories with the bit-exact model's.

    Parameters
    ----------
    chain : Chain
    wire : WireSpec, optional
        Of all links, in both directions.
    memory : MemorySpec, optional
    seed : int
        Of the data.
    threads, window_cycles, progress
        As of `Cluster` and its `run`.
    sample_cycles : int
        All counters are sampled about every so many cycles; 0 for never.

    Raises
    ------
    LinkDown, DeviceStopped, StallError
        If the devices do not do what they should.
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
        cluster.run(progress=progress, expected_cycles=chain.expected_cycles)
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
