"""Two sentences about what a build's measurements and runs show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.errors import UserError, counted
from fpgapipe.host.package.clocks import PACKAGE, other_clocks
from fpgapipe.host.report.drawing.elements import missed, text
from fpgapipe.host.report.drawing.timetable import percent
from fpgapipe.host.terminal.console import count, scaled

if TYPE_CHECKING:
    from fpgapipe.host.report.pages.inputs import Run
    from fpgapipe.host.report.pages.subject import Subject

OWN = {"sim": "in simulated hardware", "model": "in the bit-exact model"}
"""Backends that give the hardware's bits, in words, by the name of a run's folder."""


def findings(subject: Subject) -> str:
    """Write one sentence about speed and one about training, as HTML."""
    return f"{_speed(subject)} {_clocks(subject)}{_training(subject)}"


def furthest(subject: Subject) -> Run | None:
    """Choose the run that went furthest, of the simulated hardware or its model.

    These two give the same numbers. Without either the run is that of another backend.
    """
    runs = [run for run in subject.runs if run.steps]
    return min(runs, key=lambda run: (run.name not in OWN, -len(run.steps)), default=None)


def _speed(subject: Subject) -> str:
    plan, clk_hz = subject.plan, subject.clk_hz
    cycles = subject.measured.minibatch_cycles if subject.measured else None
    simulated = subject.simulated_cycles
    planned = plan.predicted.minibatch_s * clk_hz
    what = f"a mini-batch of {counted(plan.batch, 'sample')}"
    devices = counted(len(plan.nodes), "device")
    if not simulated:
        return (
            f"{devices.capitalize()} should take {count(planned)} cycles for {what}, by the plan: "
            "no mini-batch has been simulated yet."
        )
    predicted = cycles.event if cycles and cycles.event is not None else planned
    rate = scaled(plan.batch * clk_hz / simulated, "samples/s")
    gap = (predicted - simulated) / simulated
    near = f"predicted {missed(gap)}" if gap else "exactly as predicted"
    return (
        f"In simulation {devices} take {count(simulated)} cycles for {what}, {near}: {rate} at "
        f"{scaled(clk_hz, 'Hz')}."
    )


def _clocks(subject: Subject) -> str:
    """Name the devices whose bitstreams have another clock than was planned."""
    try:
        others = other_clocks(subject.build.folder / PACKAGE, subject.plan)
    except UserError as error:
        return f"{text(str(error))}. "
    found = ", ".join(f"{text(name)} {scaled(hz, 'Hz')}" for name, hz in others.items())
    counts = f"cycles of runs on boards count at {scaled(subject.plan.clk_hz, 'Hz')}"
    return f"Bitstreams have other clocks than planned: {found}; {counts}. " if found else ""


def _training(subject: Subject) -> str:
    if not subject.plan.trains:
        return "The build is for inference, so nothing is trained."
    run = furthest(subject)
    if run is None:
        return "It has not been trained yet."
    where = OWN.get(run.name, "in PyTorch" if run.name.startswith("torch") else text(run.name))
    losses = [step.loss for step in run.steps if step.loss is not None]
    sentence = f"Trained {where} for {counted(len(run.steps), 'mini-batch', 'es')}"
    if losses:
        sentence += f", its loss went from {losses[0]:.3g} to {losses[-1]:.3g}"
    if not run.validations:
        return sentence + "; it has not been validated."
    accuracy = run.validations[-1].accuracy
    sentence += f", and it finds the class of {percent(accuracy)} of the samples it never saw"
    for other in subject.runs:
        if other.name.startswith("torch") and other is not run and other.validations:
            points = 100 * (accuracy - other.validations[-1].accuracy)
            if abs(points) < 0.05:
                return sentence + ", as many as PyTorch."
            return sentence + (
                f", {abs(points):.1f} points {'more' if points > 0 else 'fewer'} than PyTorch."
            )
    return sentence + "."
