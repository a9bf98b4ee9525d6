"""The head of the page: what was built, and the most important figures."""

from __future__ import annotations

from collections.abc import Iterator

from fpgapipe.errors import counted
from fpgapipe.host.report.drawing.elements import NOTHING, missed, term, text
from fpgapipe.host.report.drawing.timetable import number, percent
from fpgapipe.host.report.pages.findings import findings, furthest
from fpgapipe.host.report.pages.inputs import Run
from fpgapipe.host.report.pages.subject import Subject
from fpgapipe.host.report.pages.task_times import LEVELS, working_share
from fpgapipe.host.runtime.program_check import Verification
from fpgapipe.host.terminal.console import count, scaled
from fpgapipe.partition.plan import DATA_PARALLEL, LAYERWISE

SHARED = {
    DATA_PARALLEL: ", each with the whole network",
    LAYERWISE: ", each with parts of all layers",
}
"""Shares of the devices of a plan, by its kind."""


def head(subject: Subject) -> str:
    """Write title, what the runs show, what was built, and the figures."""
    plan = subject.plan
    what = "Training" if plan.trains else "Inference"
    shared = SHARED.get(plan.kind, " in a pipeline")
    if plan.replicas > 1:
        shared = f" in {plan.replicas} pipelines that share the samples"
    sentence = (
        f"{what} of <b>{text(plan.network)}</b> on <b>{text(plan.cluster)}</b>, "
        f"{counted(len(plan.nodes), 'device')}{shared}. "
        f"A {term('mini-batch', 'minibatch')} of {counted(plan.batch, 'sample')} is cut into "
        f"{term(counted(plan.num_microbatches, 'micro-batch', 'es'), 'microbatch')} of "
        f"{plan.microbatch:,}, in the order of the schedule "
        f"{term(text(plan.order_name), 'schedule')}, at {scaled(subject.clk_hz, 'Hz')}."
    )
    figures = ""
    for words, value, by, css in _figures(subject):
        whole_by = by.replace(" %", "&nbsp;%")
        figures += f'<div class="{css}"><dt>{words}</dt><dd>{value}</dd>'
        figures += f'<dd class="by">{whole_by}</dd></div>\n'
    return (
        f'<p class="eyebrow">fpgapipe report</p>\n<h1>{text(plan.network)} '
        f'<span>on {text(plan.cluster)}</span></h1>\n<p class="sentence">{findings(subject)}</p>\n'
        f'<p class="note">{sentence}</p>\n'
        f'<p class="note">{_verified(subject)}.</p>\n'
        f'<dl class="facts">\n{figures}</dl>\n'
    )


def _figures(subject: Subject) -> Iterator[tuple[str, str, str, str]]:
    """Yield figures: name, value, source and CSS class."""
    plan, clk_hz = subject.plan, subject.clk_hz
    cycles = subject.measured.minibatch_cycles if subject.measured else None
    predicted = plan.predicted.minibatch_s * clk_hz
    by = "plan"
    if cycles is not None and cycles.event is not None:
        predicted, by = cycles.event, "event simulation"
    yield "Cycles a mini-batch, predicted", count(predicted), by, ""
    rtl = subject.simulated_cycles
    if rtl:
        gap = missed((predicted - rtl) / rtl)
        yield "Cycles a mini-batch, simulated", count(rtl), f"RTL; predicted {gap}", "main"
    else:
        yield "Cycles a mini-batch, simulated", NOTHING.shown, "not measured yet", "absent"
    best, by = (rtl, "RTL, at the clock") if rtl else (predicted, "predicted, at the clock")
    if best:
        rate = plan.batch * clk_hz / best
        yield "Samples per second", number(rate, 4), by, "main" if rtl else ""
    level = "rtl" if cycles and cycles.rtl else "event"
    at_work = working_share(subject, level)
    if at_work is not None:
        yield "Devices at work", percent(at_work), f"of the time, {LEVELS[level]}", ""
    if best:
        share = _work_s(subject) * clk_hz / best
        by = f"plan's ideal over {'simulated' if rtl else 'predicted'} time"
        yield term("Pipeline efficiency", "efficiency"), percent(share), by, ""
    yield from _training(subject)


def _work_s(subject: Subject) -> float:
    """Time for which the average device computes in a mini-batch, by the plan, s."""
    plan = subject.plan
    total = 0.0
    for node in plan.nodes:
        total += node.forward_s * plan.rounds
        if plan.trains:
            passes = node.input_gradient_s + node.weight_gradient_s
            total += passes * plan.rounds + node.update_s
    return total / len(plan.nodes)


def _training(subject: Subject) -> Iterator[tuple[str, str, str, str]]:
    shown = furthest(subject)
    if shown is None:
        if subject.plan.trains:
            yield "Loss", NOTHING.shown, "not trained yet", "absent"
        return
    last = shown.steps[-1]
    loss = NOTHING.shown if last.loss is None else f"{last.loss:.4g}"
    yield "Loss", loss, f"{text(shown.name)}, step {last.step:,}", ""
    if shown.validations:
        final = shown.validations[-1]
        yield (
            "Validation accuracy",
            percent(final.accuracy),
            f"{text(shown.name)}, epoch {final.epoch}{_beside(subject, shown)}",
            "main",
        )


def _beside(subject: Subject, shown: Run) -> str:
    """The reference's accuracy in words, if there is one."""
    for run in subject.runs:
        if run.name.startswith("torch") and run is not shown and run.validations:
            return f"; PyTorch {percent(run.validations[-1].accuracy)}"
    return ""


def _verified(subject: Subject) -> str:
    """The verification before the build was written, as the beginning of a sentence."""
    found = str(Verification.read(subject.build.folder))
    return text(found[0].upper() + found[1:])
