"""Bytes of memory that the programs of a plan need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.lowering.lower import tasks_of_devices
from fpgapipe.lowering.memory.layout import memory_bytes
from fpgapipe.lowering.program.step_program import StepProgram

if TYPE_CHECKING:
    from fpgapipe.lowering.program.pipeline import PipelineProgram
    from fpgapipe.partition.plan import Plan


def node_memory(plan: Plan, pipeline: PipelineProgram) -> list[int]:
    """Bytes of memory of each node's program, from a program of all its tasks or of some."""
    found = []
    lanes = tasks_of_devices(plan.division, plan.order, train=plan.trains)
    for part, tasks in zip(pipeline.parts, lanes, strict=True):
        if len(tasks) == len(part.tasks):
            found.append(part.memory_bytes)
            continue
        assert isinstance(part, StepProgram), "a program that was just made knows its demand"
        found.append(memory_bytes(part.demand.repeated(tasks)))
    return found
