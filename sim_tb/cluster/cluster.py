"""Several simulated devices and the wires between them, which share one clock.

Whenever Python sees the devices, all are at the same cycle. Between, they run concurrently for
windows of at most as many cycles as the shortest latency of a wire; after each window, the beats
that the wires have accepted are handed to the other ends. Devices that quick wires join, an island,
run in one thread, in short windows of their own within a window of all islands. So a run gives the
same results, bit for bit and cycle by cycle, whatever the number of threads and the length of the
windows. Sampling counters changes nothing either, as registers can be read while programs run.
"""

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fpgapipe.closing import Closing
from fpgapipe.hw.hls_models.model.core_protocol import progress_counters
from fpgapipe.sim_tb.cluster.cluster_library import Member, Reason, Route, cluster_library
from fpgapipe.sim_tb.cluster.cluster_nodes import (
    MAX_WINDOW_CYCLES,
    Connection,
    Node,
    island_window_cycles,
    islands,
)
from fpgapipe.sim_tb.cluster.node_registers import NodeRegisters
from fpgapipe.sim_tb.cluster.sampling import (
    Sample,
    Sampler,
    Watcher,
    low_halves,
)
from fpgapipe.sim_tb.cluster.stall import described, explain
from fpgapipe.sim_tb.native.native import (
    DeviceError,
    StallError,
    check_address,
    refusal,
)
from fpgapipe.sim_tb.native.native_library import RawBeat, RawWire
from fpgapipe.sim_tb.native.phy import WireCounts, WireSpec

_RESET_CYCLES = 4
_MAX_CYCLES = 1 << 62
_NO_LIMIT_S = 1e9


class Cluster(NodeRegisters, Closing):
    """Devices that run in lock-step; a context manager, which closes all of them.

    Parameters
    ----------
    nodes : sequence of Node
    connections : sequence of Connection
        Wires between the nodes. A port is the source of at most one connection and the target of at
        most one. Beats from a port that is not a source are lost.
    threads : int, optional
        Number of threads; by default the number of processors, at most one per node. The nodes of
        an island run in several if there are more threads than islands.
    window_cycles : int, optional
        Most cycles per window, at most the shortest delay of a wire and at most 1024; by default
        windows are as long as possible.
    outside : sequence of ((int, int), WireSpec)
        Ports, each given as the numbers of a node and a port, whose wires lead to another process;
        the caller takes their beats (`take_raw`).

    Attributes
    ----------
    nodes, connections : tuple
    window_cycles, threads : int
        Values in use; the window is that between islands, if they run in a thread each.

    Raises
    ------
    ValueError
        If a port does not exist, is used twice or differs in width from its wire; if the window or
        the number of threads is out of range.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        connections: Sequence[Connection] = (),
        *,
        threads: int | None = None,
        window_cycles: int | None = None,
        outside: Sequence[tuple[tuple[int, int], WireSpec]] = (),
    ) -> None:
        self._handle: int | None = None
        self.nodes, self.connections = tuple(nodes), tuple(connections)
        if not self.nodes or len({node.name for node in self.nodes}) != len(self.nodes):
            raise ValueError("a cluster must have nodes, each with a name of its own")
        self._check_connections()
        delays = (connection.wire.delay_cycles for connection in self.connections)
        quickest = min([*delays, MAX_WINDOW_CYCLES])
        most = MAX_WINDOW_CYCLES if window_cycles is None else window_cycles
        if window_cycles is not None and not 1 <= most <= quickest:
            raise ValueError(
                f"the window must be 1..{quickest} cycles (the quickest wire), not {window_cycles}"
            )
        threads = len(os.sched_getaffinity(0)) if threads is None else threads
        if not 1 <= threads <= 256:
            raise ValueError(f"a cluster must have 1..256 threads, not {threads}")
        self.threads = min(threads, len(self.nodes))
        # A run can end only between two rounds, whose length does not depend on the window.
        round_cycles = island_window_cycles(self.connections)
        parts = islands(len(self.nodes), self.connections)
        if self.threads > len(set(parts)):
            parts = list(range(len(self.nodes)))
        between = (
            each.wire.delay_cycles
            for each in self.connections
            if parts[each.source[0]] != parts[each.target[0]]
        )
        self.window_cycles = min([most, *between])
        self._lent = [node.device.lend() for node in self.nodes]
        inside = [(each.source, each.wire) for each in self.connections]
        for (number, port), wire in [*inside, *outside]:
            handle, library = self._lent[number]
            raw = RawWire.of(wire)
            library.fpgapipe_attach(handle, port, ctypes.byref(raw))
        members = [
            Member.of(handle, library, node.awaited and node.device.has_irq, part)
            for node, (handle, library), part in zip(self.nodes, self._lent, parts, strict=True)
        ]
        self._awaits = any(member.awaited for member in members)
        routes = [
            Route(*each.source, *each.target, min(each.wire.delay_cycles, most))
            for each in self.connections
        ]
        self._library = cluster_library()
        self._handle = self._library.fpgapipe_cluster_create(
            (Member * len(members))(*members), len(members),
            (Route * len(routes))(*routes), len(routes),
            self.window_cycles, round_cycles, self.threads,
        )  # fmt: skip
        self._samplers: list[Sampler | Watcher] = []
        self._stall_cycles = 0
        self._sample_cycles = 0
        for number, node in enumerate(self.nodes):
            if node.registers:
                names = progress_counters(node.registers)
                self._poll(number, low_halves(node.registers, names), keeps=False)
        self.reset()

    def _check_connections(self) -> None:
        used: dict[str, set[tuple[int, int]]] = {"source": set(), "target": set()}
        for connection in self.connections:
            for end, ports in used.items():
                number, port = getattr(connection, end)
                if not 0 <= number < len(self.nodes):
                    raise ValueError(f"a cluster of {len(self.nodes)} nodes has none of {number}")
                name = self.nodes[number].name
                width = self.nodes[number].device.link_bytes.get(port)
                if width is None:
                    raise ValueError(f"{name} has no link {port}")
                if width != connection.wire.phy_bytes:
                    raise ValueError(
                        f"{name} link {port} moves {width} bytes a beat, its wire "
                        f"{connection.wire.phy_bytes}"
                    )
                if (number, port) in ports:
                    raise ValueError(f"{name} link {port} is the {end} of two wires")
                ports.add((number, port))

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """End the simulation of all devices; their memories stay valid."""
        if self._handle is not None:
            self._library.fpgapipe_cluster_destroy(self._handle)
            self._handle = None
            for node in self.nodes:
                node.device.close()

    def _open(self) -> int:
        if self._handle is None:
            raise ValueError("the cluster is closed")
        return self._handle

    def _stalled(self, what: str) -> StallError:
        """Error that explains why the cluster makes no progress."""
        return StallError(explain(what, self.cycle, self.nodes, self.read_register))

    def _check(self) -> None:
        """Raise DeviceError if a device has an error."""
        for node, (handle, library) in zip(self.nodes, self._lent, strict=True):
            if text := library.fpgapipe_error(handle):
                raise DeviceError(f"{node.name}: {text.decode(errors='replace')}")
        if self._broken:
            raise DeviceError(self._broken)

    def reset(self) -> None:
        """Reset all devices and wires; memories keep their contents, waves and samples end."""
        self._open()
        for handle, library in self._lent:
            library.fpgapipe_reset(handle, _RESET_CYCLES)
        self._library.fpgapipe_cluster_reset(self._handle)
        self._broken = ""
        for sampler in self._samplers:
            sampler.clear()
        self._check()

    @property
    def cycle(self) -> int:
        """Cycles since the last reset."""
        cycle: int = self._library.fpgapipe_cluster_cycle(self._open())
        return cycle

    @property
    def moved(self) -> int:
        """Last cycle in which a run found that something had moved, or which `begin` began it in.

        See `run` for what counts.
        """
        cycle: int = self._library.fpgapipe_cluster_moved(self._open())
        return cycle

    def _access(self, number: int, address: int, value: int, write: bool, max_cycles: int) -> int:
        check_address(address)
        self._check()
        name = self.nodes[number].name
        response, found = self.access_for(number, address, value, write, max_cycles)
        if response == -2:
            self._broken = (
                f"{name}: cycle {self.cycle}: the design did not answer a register access within "
                f"{max_cycles} cycles"
            )
        self._check()
        if response:
            raise DeviceError(f"{name}: {refusal(address, write, response)}")
        return found

    def run(
        self,
        max_cycles: int | None = None,
        *,
        until_irq: bool = True,
        stall_cycles: int | None = 200_000,
        progress: Callable[[int], object] | None = None,
        progress_s: float = 0.1,
    ) -> int:
        """Run until all awaited interrupts are high, or for a number of cycles.

        A run ends between two rounds of 64 cycles or more, thus some cycles after the last
        interrupt has risen; `Statistics.irq_cycle` is the exact cycle. After Ctrl-C or an exception
        from `progress`, all devices stand between two rounds and can go on.

        Parameters
        ----------
        max_cycles : int, optional
            Number of cycles to run; with `until_irq`, the limit within which the interrupts must
            rise.
        until_irq : bool
            Whether to end when all awaited interrupts are high.
        stall_cycles : int, optional
            With `until_irq`, cycles, at least 2000, after which a cluster without progress is
            considered stalled. Progress is an active memory bus, a progress counter that changes in
            a node with registers, or a beat from a node without registers. None means no limit.
        progress : callable, optional
            Function that is called about every `progress_s` seconds with the cycles that ran.
        progress_s : float
            Approximate interval at which Python handles signals and calls `progress`, seconds.

        Returns
        -------
        int
            Number of cycles that ran.

        Raises
        ------
        StallError
            If `until_irq` is set and one of the two limits is reached; the message says for each
            device which of its engines waits for what.
        DeviceError
            If a design breaks a rule of its buses; the cluster must then be reset.
        """
        if until_irq and not self._awaits:
            raise ValueError("no device of the cluster has a port irq to wait for")
        if not until_irq and max_cycles is None:
            raise ValueError("a cluster that does not wait for irq needs a number of cycles")
        if stall_cycles is not None and stall_cycles < 2000:
            raise ValueError(f"stall_cycles must be at least 2000, not {stall_cycles}")
        self.begin((stall_cycles or 0) if until_irq else 0)
        begin = self.cycle
        most = _MAX_CYCLES if max_cycles is None else max_cycles
        reason = Reason.TIME
        while reason is Reason.TIME:
            left = most - (self.cycle - begin)
            reason = self._slice(left, until_irq, progress_s)
            if progress:
                progress(self.cycle - begin)
        if reason is Reason.STALLED:
            raise self._stalled(f"nothing has moved for {stall_cycles} cycles")
        if until_irq and reason is Reason.CYCLES:
            raise self._stalled(f"not all interrupts came within {max_cycles} cycles")
        return self.cycle - begin

    def _slice(self, cycles: int, until_irq: bool, seconds: float) -> Reason:
        """Run for some cycles and seconds at most; returns the reason of the end."""
        handle = self._open()
        reason = Reason(self._library.fpgapipe_cluster_run(handle, cycles, until_irq, seconds))
        for sampler in self._samplers:
            sampler.collect(self._library, handle)
        for node in self.nodes:
            node.device.flush_waves()
        self._check()
        return reason

    def begin(self, stall_cycles: int) -> None:
        """Begin a run that `go` or `advance` goes through; a stall's cycles are counted from here.

        The run has stalled when nothing has moved for `stall_cycles`; 0 means no limit.
        """
        self._check()
        self._stall_cycles = stall_cycles
        self._library.fpgapipe_cluster_begin(self._open(), stall_cycles)

    def go(self, seconds: float) -> Reason:
        """Go on with a run until all awaited interrupts are high, for some seconds at most.

        Returns
        -------
        Reason
            Why it ends: `INTERRUPTS`, `TIME`, or `STALLED`.

        Raises
        ------
        DeviceError
            If a design breaks a rule of its buses; the cluster must then be reset.
        """
        return self._slice(_MAX_CYCLES, True, seconds)

    def advance(self, cycles: int) -> Reason:
        """Run for a number of cycles, whatever interrupts say; returns the reason of the end.

        It is `Reason.STALLED` when nothing has moved for the `stall_cycles` of `begin`; if they are
        not less than a round, all `cycles` have run nevertheless.

        Raises
        ------
        DeviceError
            If a design breaks a rule of its buses.
        """
        reason = Reason(
            self._library.fpgapipe_cluster_run(self._open(), cycles, False, _NO_LIMIT_S)
        )
        self._check()
        return reason

    def access_for(
        self, number: int, address: int, value: int, write: bool, cycles: int
    ) -> tuple[int, int]:
        """Access a register for some cycles; returns the bus's response and the value.

        The response is -2 if there is none yet; the next call then goes on with this access.
        """
        register = ctypes.c_uint32(value)
        response = self._library.fpgapipe_cluster_access(
            self._open(), number, address, ctypes.byref(register), write, cycles
        )
        self._check()
        return response, register.value

    def read_memory(self, number: int, address: int, size_bytes: int) -> NDArray[np.uint8]:
        """A copy of bytes of a node's memory."""
        return self.nodes[number].device.memory[address : address + size_bytes].copy()

    def write_memory(self, number: int, address: int, data: NDArray[np.uint8]) -> None:
        """Write bytes to a node's memory."""
        self.nodes[number].device.memory[address : address + data.size] = data

    def described(self, number: int) -> list[str]:
        """Description of a node without its registers, in words."""
        return described(self.nodes[number].device)

    def take_raw(self, number: int, port: int) -> bytes:
        """Take the beats off the wire of a port, as bytes for `give_raw`."""
        handle, library = self._lent[number]
        count = ctypes.c_uint64()
        raw = library.fpgapipe_flying(handle, port, ctypes.byref(count))
        beats = ctypes.string_at(raw, count.value * ctypes.sizeof(RawBeat)) if count.value else b""
        library.fpgapipe_taken(handle, port)
        return beats

    def give_raw(self, number: int, port: int, beats: bytes) -> None:
        """Let beats that `take_raw` has taken in another process arrive at a port."""
        handle, library = self._lent[number]
        count = len(beats) // ctypes.sizeof(RawBeat)
        library.fpgapipe_give(handle, port, (RawBeat * count).from_buffer_copy(beats), count)
        self._check()

    def irq_cycles(self) -> list[int | None]:
        """First cycle since which each node's interrupt is high; None if it is low."""
        return [node.device.statistics.irq_cycle for node in self.nodes]

    def state(self) -> tuple[bytes, ...]:
        """State of all devices and wires between two runs, without the contents of memories.

        `set_state` of a cluster of equal devices and wires continues from it, with any number of
        threads and windows of any length. Samples so far are no part of it.
        """
        count = ctypes.c_uint64()
        words = self._library.fpgapipe_cluster_save(self._open(), ctypes.byref(count))
        own = ctypes.string_at(words, 8 * count.value)
        return (own, *(node.device.state() for node in self.nodes))

    def set_state(self, state: Sequence[bytes]) -> None:
        """Continue from a state; the caller restores the memories. The bytes must be trusted.

        Raises
        ------
        DeviceError
            If the state is of another cluster, which must then be reset.
        """
        self._open()
        own, *devices = state
        if len(devices) != len(self.nodes):
            raise DeviceError(f"the state is of {len(devices)} devices, not of {len(self.nodes)}")
        for node, each in zip(self.nodes, devices, strict=True):
            node.device.set_state(each)
        if not self._library.fpgapipe_cluster_restore(self._handle, own, len(own) // 8):
            raise DeviceError("the state is of a cluster whose other registers are read")
        self._broken = ""

    def sample(self, period_cycles: int, counters: Mapping[int, Sequence[str]]) -> None:
        """Sample counters periodically during runs, from now on.

        Parameters
        ----------
        period_cycles : int
            Approximate period, cycles; 0 ends the sampling.
        counters : mapping of int to sequence of str
            Names of counters (``RegisterMap.counters``) by number of the node, which must have
            registers.

        Raises
        ------
        ValueError
            If a node has no registers.
        KeyError
            If a node has no counter of that name.
        """
        self._samplers = []
        for number in range(len(self.nodes)):
            names = tuple(counters.get(number, ())) if period_cycles else ()
            registers = self.nodes[number].registers
            if names and registers is None:
                raise ValueError(f"{self.nodes[number].name} has no registers to sample")
            addresses = low_halves(registers, names) if registers else []
            self._poll(number, addresses, keeps=True)
            if names:
                self._samplers.append(Sampler(number, names))
        self._library.fpgapipe_cluster_sample(self._open(), period_cycles)

    def watch(self, period_cycles: int, registers: Mapping[int, Sequence[str]]) -> None:
        """Read registers periodically during runs, from now on; ends the sampling of counters.

        Within a period, the registers are read one after another, some cycles apart. A register
        that is listed several times is read several times per period.

        Parameters
        ----------
        period_cycles : int
            Approximate period, cycles.
        registers : mapping of int to sequence of str
            Names of registers by number of the node, which must have registers.

        Raises
        ------
        ValueError
            If a node has no registers.
        KeyError
            If a node has no register of that name.
        """
        self.sample(0, {})
        for number, names in registers.items():
            known = self.nodes[number].registers
            if known is None:
                raise ValueError(f"{self.nodes[number].name} has no registers to watch")
            self._poll(number, [known.offset(name) for name in names], keeps=True)
            self._samplers.append(Watcher(number))
        self._library.fpgapipe_cluster_sample(self._open(), period_cycles)

    def readings(self, number: int) -> NDArray[np.int64]:
        """Readings of a node's watched registers since the reset.

        Each row has three columns: the index in the list of registers, the cycle in which the
        reading began, and the value.
        """
        for watcher in self._samplers:
            if isinstance(watcher, Watcher) and watcher.node == number:
                return watcher.readings
        return np.zeros((0, 3), np.int64)

    def _poll(self, number: int, addresses: Sequence[int], *, keeps: bool) -> None:
        raw = (ctypes.c_uint32 * len(addresses))(*addresses)
        self._library.fpgapipe_cluster_poll(self._open(), number, raw, len(addresses), keeps)

    def progress_of(self, number: int) -> dict[str, int]:
        """Lower halves of a node's progress counters, by name, without running a cycle.

        They are those that were read last for the detection of stalls, thus up to a quarter of
        `stall_cycles` old; 0 before the first reading, and none for a node without registers.
        """
        registers = self.nodes[number].registers
        names = progress_counters(registers) if registers else ()
        values = self._library.fpgapipe_cluster_watched(self._open(), number)
        return {name: values[index] for index, name in enumerate(names)}

    @property
    def samples(self) -> list[Sample]:
        """All samples since the reset, ordered by cycle and node."""
        found = [
            sample
            for sampler in self._samplers
            if isinstance(sampler, Sampler)
            for sample in sampler.samples
        ]
        return sorted(found, key=lambda sample: (sample.cycle, sample.node))

    def save_waves(self, number: int, path: Path, begin: int = 0, end: int | None = None) -> None:
        """Record waves of a node's cycles ``begin..end - 1``; see `NativeDevice.save_waves`."""
        self.nodes[number].device.save_waves(path, begin, end)

    def wire_counts(self, connection: int) -> WireCounts:
        """Event counts of a connection's wire since the reset."""
        number, port = self.connections[connection].source
        return self.nodes[number].device.wire_counts(port)
