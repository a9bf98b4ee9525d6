"""Facts of a plan's programs about its times and bytes, in a form that files can keep.

They take the place of what formulas estimated (`NodeFacts.priced`, `with_prices`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES
from fpgapipe.hw.hls_models.spec.link import Channel
from fpgapipe.lowering.schedule.schedule import Task, TaskKind
from fpgapipe.partition.plan import Prediction
from fpgapipe.partition.pricing.prediction import schedule_of
from fpgapipe.partition.timeline.timeline import StageTimes, simulate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fpgapipe.lowering.placement import Placement
    from fpgapipe.partition.plan import NodePlan, Plan
    from fpgapipe.partition.pricing.prediction import PipelineTiming
    from fpgapipe.partition.pricing.task_times import TaskTimes
    from fpgapipe.partition.timeline.timeline import Timeline


@dataclass(frozen=True)
class NodeFacts:
    """Facts of a node's program.

    Attributes
    ----------
    forward_cycles, backward_cycles : float
        Mean cycles of a pass over a micro-batch, where both gradients are one task.
    update_cycles : float
        Cycles of an update, or those after the last pass where nodes sum their gradients.
    sends_bytes, returns_bytes : int
        Bytes of a micro-batch that go to the next stage, and to the one before.
    memory_bytes : int
        Bytes of memory for the whole mini-batch.
    input_gradient_cycles, weight_gradient_cycles : float
        Mean cycles of such tasks of their own.
    busy_cycles : float
        Cycles of all tasks but a last update; 0 where nodes are timed together.
    """

    forward_cycles: float
    backward_cycles: float
    update_cycles: float
    sends_bytes: int
    returns_bytes: int
    memory_bytes: int
    input_gradient_cycles: float = 0.0
    weight_gradient_cycles: float = 0.0
    busy_cycles: float = 0.0

    @classmethod
    def of(
        cls,
        times: TaskTimes,
        lane: Sequence[Task],
        numbers: Sequence[int],
        memory_bytes: int,
        placement: Placement,
    ) -> NodeFacts:
        """Facts from a program.

        Parameters
        ----------
        times : TaskTimes
            Times of the program's tasks.
        lane : sequence of Task
            Tasks of the mini-batch.
        numbers : sequence of int
            For each of these, number of the one in the program that takes as long.
        memory_bytes : int
        placement : Placement
            All devices, and the wires between them.
        """
        cycles = times.durations[list(numbers)]
        kinds = np.array([task.kind for task in lane])

        def mean(kind: TaskKind) -> float:
            return float(cycles[kinds == kind].mean()) if (kinds == kind).any() else 0.0

        counts = kinds != TaskKind.U
        if counts.sum() < len(kinds) - 1:  # there is an update after each micro-batch
            counts[:] = True
        program = times.program
        count = max(len({task.microbatch for task in program.tasks} - {-1}), 1)
        before, after = placement.between(program.index)
        is_last = placement.after(program.index) is None
        is_first = placement.before(program.index) is None
        sends = () if is_last else times.sent(after, Channel.ACTIVATIONS)
        returns = () if is_first else times.sent(before, Channel.GRADIENTS)
        return cls(
            mean(TaskKind.F),
            mean(TaskKind.B),
            mean(TaskKind.U),
            WORD_BYTES * sum(sent.words for sent in sends) // count,
            WORD_BYTES * sum(sent.words for sent in returns) // count,
            memory_bytes,
            mean(TaskKind.DX),
            mean(TaskKind.DW),
            float(cycles[counts].sum()),
        )

    def priced(self, node: NodePlan, clk_hz: float) -> NodePlan:
        """The node of a plan with these seconds and bytes.

        The time of both gradients is shared between them as the estimate had it.
        """
        estimated = node.input_gradient_s + node.weight_gradient_s
        share = node.input_gradient_s / estimated if estimated else 1.0
        backward_s = self.backward_cycles / clk_hz
        inputs_s = share * backward_s
        return node.model_copy(
            update={
                "forward_s": self.forward_cycles / clk_hz,
                "input_gradient_s": self.input_gradient_cycles / clk_hz + inputs_s,
                # So that both together do not depend on how they are shared, not even by rounding.
                "weight_gradient_s": self.weight_gradient_cycles / clk_hz + (backward_s - inputs_s),
                "update_s": self.update_cycles / clk_hz,
                "sends_bytes": self.sends_bytes,
                "returns_bytes": self.returns_bytes,
                "memory_bytes": self.memory_bytes,
            }
        )


def with_prices(
    plan: Plan, nodes: Sequence[NodePlan], seconds: float, period_s: float, timeline: Timeline
) -> tuple[Plan, Timeline]:
    """The plan with nodes that are priced and the prediction of its programs, and its timeline."""
    predicted = Prediction(
        minibatch_s=seconds,
        period_s=period_s,
        bubble_rate=min(max(timeline.bubble_rate, 0.0), 1.0),
        samples_per_s=plan.batch / seconds,
        level="machine",
    )
    return plan.with_nodes(nodes).model_copy(update={"predicted": predicted}), timeline


@dataclass(frozen=True)
class PlanFacts:
    """Facts of the programs of a pipeline, each stage of which has a node.

    Attributes
    ----------
    stage_times : StageTimes
        Cycles of tasks and transfers.
    lanes : tuple of tuple of Task
        Tasks of each device.
    waits : tuple of (Task, Task, float)
        Cycles for which a task waits for a result of a concurrent one, as `simulate` takes them.
    nodes : tuple of NodeFacts
    cycles : int or None
        Cycles of the mini-batch by the cycle model of all devices together, if programs of all
        micro-batches were timed; otherwise only the event simulation of `stage_times` tells them.
    """

    stage_times: StageTimes
    lanes: tuple[tuple[Task, ...], ...]
    waits: tuple[tuple[Task, Task, float], ...]
    nodes: tuple[NodeFacts, ...]
    cycles: int | None

    @classmethod
    def of(cls, timing: PipelineTiming, memory_bytes: Sequence[int]) -> PlanFacts:
        """Facts of programs, which have all tasks or a few that tell the times of all."""
        lanes, placement = timing.all_tasks, timing.pipeline.placement
        own = zip(timing.tasks, lanes, timing.like, memory_bytes, strict=True)
        return cls(
            timing.stage_times,
            tuple(map(tuple, lanes)),
            tuple(timing.waits),
            tuple(NodeFacts.of(*each, placement) for each in own),
            timing.mini_batch_cycles,
        )

    def timeline(self, clk_hz: float) -> Timeline:
        """The event simulation in seconds of devices that all have one clock."""
        return simulate(
            schedule_of(self.lanes),
            self.stage_times.changed(lambda values: values / clk_hz),
            waits=[(task, other, cycles / clk_hz) for task, other, cycles in self.waits],
        )

    def to_json(self) -> dict[str, Any]:
        """The facts as values of JSON."""
        times = {
            each.name: np.asarray(value).tolist()
            for each in fields(self.stage_times)
            if (value := getattr(self.stage_times, each.name)) is not None
        }
        waits = [[_numbers(task), _numbers(other), cycles] for task, other, cycles in self.waits]
        nodes = [asdict(each) for each in self.nodes]
        return {
            "stage_times": times,
            "lanes": [list(map(_numbers, lane)) for lane in self.lanes],
            "waits": waits,
            "nodes": nodes,
            "cycles": self.cycles,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PlanFacts:
        """Inverse of `to_json`."""
        times: dict[str, Any] = {
            name: np.array(numbers) for name, numbers in value["stage_times"].items()
        }
        return cls(
            StageTimes(**times),
            tuple(tuple(map(_task, lane)) for lane in value["lanes"]),
            tuple((_task(task), _task(other), cycles) for task, other, cycles in value["waits"]),
            tuple(NodeFacts(**each) for each in value["nodes"]),
            value["cycles"],
        )


def _numbers(task: Task) -> list[int]:
    return [int(task.kind), task.stage, task.microbatch]


def _task(numbers: Sequence[int]) -> Task:
    kind, stage, microbatch = numbers
    return Task(TaskKind(kind), stage, microbatch)
