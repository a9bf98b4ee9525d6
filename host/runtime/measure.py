"""Times each task and layer of a mini-batch in the simulator, and compares with the predictions.

Loads and stores are timed by reading the registers of their queues while the programs run
(`fpgapipe.sim_tb.cluster.cluster.Cluster.watch`), which changes no cycle. Times are exact to
`RESOLUTION_CYCLES`.

A task, or a layer in a task, lasts from its first load to its last store, but it begins no earlier
than the end of the one before it. If it receives something, the first load of received data is
taken as its first load, since other loads take place earlier, while the device waits. Where tasks
are concurrent, the one before it is the one before it in the same lane.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.files import write_whole
from fpgapipe.host.backends.simulator import SimulatorBackend
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.cycles.link_cycles import WireTiming
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES, Opcode
from fpgapipe.hw.hls_models.model.link_dma import words_of_packet
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec
from fpgapipe.hw.hls_models.spec.link import TRAILER_BYTES, Channel
from fpgapipe.lowering.program.lanes import is_concurrent
from fpgapipe.lowering.schedule.schedule import TaskKind
from fpgapipe.lowering.units.step_options import UPDATE, scalar_bits
from fpgapipe.network.initial_values import random_batch
from fpgapipe.network.losses import Loss
from fpgapipe.partition.pricing.cycle_account import accounts
from fpgapipe.partition.pricing.prediction import PipelineTiming
from fpgapipe.stopwatch import phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from fpgapipe.host.build.build import Build
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.lowering.program.device_program import DeviceProgram
    from fpgapipe.lowering.program.pipeline import PipelineProgram
    from fpgapipe.sim_tb.native.phy import WireSpec

    Layers = dict[tuple[str, TaskKind], float]

RESOLUTION_CYCLES = 64
"""Resolution of measured times, in cycles.

Four registers are read in turn, which takes three cycles for each, and none are read in the last
cycles of a round of the cluster.
"""

_SWEEPS = 1 << 14
"""Number of times that all registers are read in turn before reading pauses until the next round.

A round is one of the cluster, see `Cluster.watch`.
"""

_TIMED = (Opcode.LOAD, Opcode.STORE)
_MEASURED = "measured.json"


@dataclass(frozen=True)
class Measurement:
    """Predictions and measurement of a mini-batch; `to_dict` gives them for JSON.

    Attributes
    ----------
    timing : PipelineTiming
        The predictions.
    kind : str
        Kind of the schedule.
    clk_hz : float
        Clock frequency of the devices, Hz.
    cycles : int
        Cycles of the mini-batch in the simulator.
    devices : list of DeviceMeasurement
        Measurements of each device.
    """

    timing: PipelineTiming
    kind: str
    clk_hz: float
    cycles: int
    devices: list[DeviceMeasurement]

    def to_dict(self) -> dict[str, Any]:
        """Contents of ``measured.json``; times are cycles from the start of the first device."""
        timing = self.timing
        count = timing.schedule.num_microbatches
        formula = timing.closed_form(self.kind)
        events = timing.event_tasks()
        models = [
            Times.of_model(each.program, *ends)
            for each, ends in zip(
                timing.tasks,
                [(found.starts, found.ends) for found in timing.cluster.devices],
                strict=True,
            )
        ]
        spent = [each.by_unit() for each in accounts(timing.pipeline, timing.cluster)]
        devices = []
        for number, found in enumerate(self.devices):
            model = models[number]
            spans = found.times.tasks() if found.times else [None] * len(model.program.tasks)
            devices.append(
                {
                    "counters": found.counters,
                    "spent": spent[number],
                    "tasks": [
                        {
                            "task": str(task),
                            "kind": task.kind.token,
                            "microbatch": task.microbatch,
                            "event": _rounded(events[number][task]),
                            "cycle_model": _rounded(predicted),
                            "rtl": measured and _rounded(measured),
                        }
                        for task, predicted, measured in zip(
                            model.program.tasks, model.tasks(), spans, strict=True
                        )
                    ],
                    "layers": _layer_rows(
                        timing.closed_layers[number],
                        model.layers(),
                        found.times.layers() if found.times else None,
                        count,
                    ),
                }
            )
        return {
            "clk_hz": self.clk_hz,
            "minibatch_cycles": {
                "closed_form": formula and round(formula),
                "event": round(timing.event_cycles),
                "cycle_model": timing.cluster.cycles,
                "rtl": self.cycles,
            },
            "resolution_cycles": RESOLUTION_CYCLES,
            "devices": devices,
            "links": list(self._links()),
        }

    def _links(self) -> Iterator[dict[str, Any]]:
        timing = self.timing
        links = timing.timeline.links
        busy = {(link.source, link.destination): link.busy_s for link in links}
        for (one, _), (other, _) in timing.pipeline.wiring:
            for ends in ((one, other), (other, one)):
                if (row := _link_row(self, *ends, busy.get(ends, 0.0)))["bytes"]:
                    yield row


@dataclass(frozen=True)
class DeviceMeasurement:
    """Measurements of one device.

    Attributes
    ----------
    counters : dict of str to int
        Increase of each counter.
    times : Times or None
        Times of loads and stores; None for a core without links, whose queues have no registers.
    """

    counters: dict[str, int]
    times: Times | None


@dataclass(frozen=True)
class Times:
    """Times at which a program's loads begin and its stores end.

    Attributes
    ----------
    program : DeviceProgram
    begins, ends : float array, shape (instructions,)
        Cycle in which each load begins (inf for other instructions) and in which each store ends
        (-inf for other instructions). The instruction END is left out.
    """

    program: DeviceProgram
    begins: NDArray[np.float64]
    ends: NDArray[np.float64]

    @classmethod
    def of_model(
        cls, program: DeviceProgram, starts: Sequence[float], ends: Sequence[float]
    ) -> Times:
        """Times from the cycle model.

        A load begins here when it has become the oldest of its queue, as the registers show it.
        """
        opcodes = program.instructions.opcodes[: len(program.kernel_of)]
        is_load, is_store = (opcodes == op for op in _TIMED)
        begins = np.full(len(opcodes), inf)
        (loads,) = np.nonzero(is_load)
        begun, ended = np.asarray(starts), np.asarray(ends)
        begins[loads] = np.maximum(begun[loads], np.append(0.0, ended[loads[:-1]]))
        return cls(program, begins, np.where(is_store, ended[: len(opcodes)], -inf))

    @classmethod
    def of_readings(
        cls, program: DeviceProgram, readings: NDArray[np.int64], start: int, end: int
    ) -> Times:
        """Times from readings of the queues' registers while the program ran.

        Parameters
        ----------
        program : DeviceProgram
        readings : int array, shape (readings, 3)
            Result of `Cluster.readings` for the registers of `watched`.
        start, end : int
            Cycle from which times are counted, and cycle in which the program ended.
        """
        count = len(program.kernel_of)
        begins, ends = np.full(count, inf), np.full(count, -inf)
        for queue, opcode in enumerate(_TIMED):
            own = program.instructions.places_of(opcode).tolist()
            seen = readings[readings[:, 0] // 2 % 2 == queue]
            began, ended = _follow(own, seen, end)
            if opcode is Opcode.LOAD:
                begins[own] = np.asarray(began) - start
            else:
                ends[own] = np.asarray(ended) - start
        return cls(program, begins, ends)

    @cached_property
    def _takes(self) -> NDArray[np.bool_]:
        """Whether each instruction waits for a RECEIVE."""
        program = self.program.instructions[: len(self.begins)]
        signals = program.signals[program.places_of(Opcode.RECEIVE)]
        takes: NDArray[np.bool_] = program.waits & np.bitwise_or.reduce(signals) != 0
        return takes

    def tasks(self) -> list[tuple[float, float]]:
        """Cycles in which each task begins and ends."""
        numbers = np.array([each.task for each in self.program.kernels])
        count = len(self.program.tasks)
        return self._spans(numbers[self.program.kernel_of], range(count))

    def layers(self) -> Layers:
        """Cycles of each layer in each kind of task, summed over all micro-batches."""
        keys: dict[tuple[str, int], int] = {}
        for each in self.program.kernels:
            keys.setdefault((each.layer, each.task), len(keys))
        of_kernel = np.array([keys[each.layer, each.task] for each in self.program.kernels])
        spans = self._spans(of_kernel[self.program.kernel_of], [task for _, task in keys])
        found: Layers = {}
        for (layer, task), (begin, end) in zip(keys, spans, strict=True):
            if end > begin:
                kind = self.program.tasks[task].kind
                found[layer, kind] = found.get((layer, kind), 0.0) + end - begin
        return found

    def _spans(
        self, group_of: NDArray[np.int64], tasks: Sequence[int]
    ) -> list[tuple[float, float]]:
        """Begin and end of groups of instructions; a group begins after the end of the one before.

        Parameters
        ----------
        group_of : int array
            Group of each instruction.
        tasks : sequence of int
            Task of each group. In a program with two lanes, forward tasks are in one lane and all
            others in the other, and the group before is the one before in the same lane.
        """
        count = len(tasks)
        begins, received, ends = np.full(count, inf), np.full(count, inf), np.full(count, -inf)
        np.minimum.at(begins, group_of, self.begins)
        np.minimum.at(received, group_of, np.where(self._takes, self.begins, inf))
        np.maximum.at(ends, group_of, self.ends)
        begins = np.where(received < inf, received, begins)
        has_lanes = is_concurrent(self.program.instructions)
        spans = []
        last = [0.0, 0.0]
        for task, begin, end in zip(tasks, begins.tolist(), ends.tolist(), strict=True):
            lane = int(has_lanes and self.program.tasks[task].kind is not TaskKind.F)
            end = max(last[lane], end)
            spans.append((min(max(last[lane], begin), end), end))
            last[lane] = end
        return spans


def watched(core: CoreSpec) -> list[str]:
    """Registers that show the progress of loads and stores, in the order of reading."""
    spec = SequencerSpec.of(core)
    numbers = [spec.queues.index((opcode, 0)) for opcode in _TIMED]
    return [f"QUEUE{number}_{name}" for number in numbers for name in ("OLDEST", "WAIT")] * _SWEEPS


def _follow(
    own: Sequence[int], readings: NDArray[np.int64], end: int
) -> tuple[list[float], list[float]]:
    """Begin and end of a queue's instructions, from alternate readings of OLDEST and WAIT.

    A reading of OLDEST is valid only if WAIT.busy was 1 in the readings before and after it. Every
    instruction stays the oldest for longer than the time between two readings, since it waits for
    memory. All instructions before the one that is seen as the oldest have therefore ended: when
    the queue was first seen idle since the last valid reading, or else at this reading.
    """
    place = {number: at for at, number in enumerate(own)}
    begins, ends = [inf] * len(own), [inf] * len(own)
    done = begun = 0
    was_busy, oldest, since = False, -1, 0
    idle: float | None = None
    for register, cycle, value in readings.tolist():
        if register % 2 == 0:
            oldest, since = value, cycle
            continue
        is_busy = bool(value >> 1 & 1)
        if not is_busy:
            idle = cycle if idle is None and begun else idle
        elif was_busy and place.get(oldest, -1) >= done:
            at = place[oldest]
            ends[done:at] = [since if idle is None else idle] * (at - done)
            begins[begun : at + 1] = [since] * (at + 1 - begun)
            done, begun, idle = at, max(begun, at + 1), None
        was_busy = is_busy
    ends[done:] = [end if idle is None else idle] * (len(own) - done)
    begins[begun:] = [end] * (len(own) - begun)
    return begins, ends


def _rounded(times: tuple[float, float]) -> list[int]:
    return [max(round(time), 0) for time in times]


def _layer_rows(
    closed: Layers, model: Layers, rtl: Layers | None, count: int
) -> list[dict[str, Any]]:
    """Cycles of each layer on each level, summed over all micro-batches."""
    rows = []
    for layer, kind in model:
        times = 1 if layer == UPDATE else count
        formula = closed.get((layer, kind))
        cycles = None if rtl is None else rtl.get((layer, kind), 0.0)  # 0 if too short to be seen
        rows.append(
            {
                "layer": layer,
                "pass": kind.token,
                "closed_form": None if formula is None else round(times * formula),
                "cycle_model": round(model[layer, kind]),
                "rtl": None if cycles is None else round(cycles),
            }
        )
    return rows


def _link_row(found: Measurement, source: int, target: int, event: float) -> dict[str, Any]:
    """Bytes and busy cycles of the transfers from one device to another."""
    timing = found.timing
    part = timing.pipeline.parts[source]
    forward = source < target
    link = timing.pipeline.placement.link(source, target)
    spec = part.core.links[link]
    wire = timing.wires[timing.pipeline.placement.wire(source, target)]
    rate = min(wire.bytes_per_cycle, spec.phy_bytes)
    channel = Channel.ACTIVATIONS if forward else Channel.GRADIENTS
    words = sum(
        words_of_packet(each.body)
        for each in part.instructions
        if (each.opcode, each.engine) == (Opcode.SEND, link) and each.body["channel"] == channel
    )
    name = f"LINK{link}_"
    counters = {
        key.removeprefix(name): value
        for key, value in found.devices[source].counters.items()
        if key.startswith(name)
    }
    sent = counters["TX_WORDS"] * WORD_BYTES + counters["TX_FRAMES"] * TRAILER_BYTES
    return {
        "from": source,
        "to": target,
        "bytes": words * WORD_BYTES,
        "busy_cycles": {
            "closed_form": round(words * WORD_BYTES / (rate * spec.efficiency)),
            "event": round(event),
            "cycle_model": round(timing.cluster.wires[source, link].busy_cycles),
            "rtl": round(sent / rate),
        },
        "counters": counters,
    }


def measure(
    pipeline: PipelineProgram,
    kind: str,
    parameters: Mapping[str, NDArray[np.float32]],
    memories: Sequence[MemorySpec],
    wires: Sequence[WireSpec],
    *,
    clk_hz: float = 300e6,
    threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Measurement:
    """Run one mini-batch of random samples in the simulator, and time it.

    Parameters
    ----------
    pipeline : PipelineProgram
        Programs of the devices. Tasks are timed only on cores with links, since only these have
        registers for their queues.
    kind : str
        Kind of the schedule.
    parameters : mapping of str to array
        Initial parameters.
    memories : sequence of MemorySpec
        Memory of each device.
    wires : sequence of WireSpec
        Cables: for each device but the last, the one to the next device.
    clk_hz : float
        Clock frequency of the devices, Hz.
    threads : int, optional
        Number of threads, as for `Cluster`.
    progress : callable, optional
        Function that is called now and then with the cycles so far and those predicted.
    """
    timing = PipelineTiming.of(
        pipeline,
        memories,
        [WireTiming(float(each.rate), each.delay_cycles) for each in wires],
    )
    predicted = timing.cluster.cycles
    with SimulatorBackend(pipeline, parameters, memories, wires, threads=threads) as backend:
        cluster = backend.devices.local
        assert cluster is not None, "it is not shared with other processes"
        cores = [part.core for part in pipeline.parts]
        before = backend.counters()
        seen = {number: watched(core) for number, core in enumerate(cores) if core.links}
        cluster.watch(1, seen)
        with phase("simulation"):
            cycles = backend.cycles_of(
                *random_samples(pipeline),
                scalar_bits(learning_rate=0.01),
                progress=progress and (lambda cycle: progress(cycle, max(cycle, predicted))),
            )
        ends = [node.device.statistics.irq_cycle or cluster.cycle for node in cluster.nodes]
        start = max(ends) - cycles
        readings = [cluster.readings(number) for number in range(len(cores))]
        cluster.watch(0, {})
        after = backend.counters()
    devices = [
        DeviceMeasurement(
            {name: value - before[number][name] for name, value in after[number].items()},
            Times.of_readings(part, readings[number], start, ends[number])
            if part.core.links
            else None,
        )
        for number, part in enumerate(pipeline.parts)
    ]
    return Measurement(timing, kind, clk_hz, cycles, devices)


def random_samples(
    pipeline: PipelineProgram,
) -> tuple[dict[str, NDArray[Any]], Any]:
    """A random mini-batch; the number of cycles does not depend on its values."""
    kinds = tuple(
        (each.output, Loss("mse" if each.correct is None else "cross-entropy"))
        for each in pipeline.losses
    )
    count = pipeline.parts[0].all_microbatches
    return random_batch(pipeline.graph, 0, count, Loss(others=kinds))


def measure_build(
    build: Build,
    *,
    threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Measurement:
    """Measure a build's mini-batch, and write the result to ``run/measured.json``.

    Raises
    ------
    UserError
        If each device has all layers, or devices have parts of layers.
    """
    if len(build.plan.nodes) > len(build.plan.stages):
        raise UserError(
            f"a {build.plan.kind} build has no measured tasks; 'fpgapipe run' gives the "
            "cycles of its mini-batches"
        )
    path = build.run_folder / _MEASURED
    build.check_verilog()
    found = measure(
        build.pipeline,
        build.plan.schedule,
        build.parameters,
        build.memories,
        build.wires,
        clk_hz=build.plan.clk_hz,
        threads=threads,
        progress=progress,
    )
    path.parent.mkdir(exist_ok=True)
    write_whole(path, [json.dumps(found.to_dict()).encode()])
    return found
