"""Plans as tables: stages, degrees, and where the cycles of a step go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from fpgapipe.errors import counted
from fpgapipe.host.terminal.console import Table, count, scaled
from fpgapipe.hw.hls_models.spec.device import ClusterSpec
from fpgapipe.partition.plan import Plan
from fpgapipe.partition.pricing.cycle_account import CycleAccount

LEAST_SHARE = 0.005
"""Rows with a smaller share of the step are added up in one row."""

MOST_ROWS = 16
"""Rows of units and passes that are shown of each device."""

REST = "all else"


def plan_parts(plan: Plan, cluster: ClusterSpec) -> Iterator[Table | str]:
    """A plan as a table, and what is predicted."""
    room = dict(zip(cluster.device_names, cluster.devices, strict=True))
    rows = []
    places = [(i, each) for i, stage in enumerate(plan.stages) for each in stage.nodes]
    for i, node in places:
        layers = plan.stages[i].layers
        memory = room[node.device].memory_bytes
        rows.append(
            (
                i,
                node.device,
                f"{node.core.rows}x{node.core.cols}",
                len(layers),
                layers[0],
                layers[-1],
                count(node.macs),
                scaled(node.forward_s, "s"),
                scaled(node.input_gradient_s, "s"),
                scaled(node.weight_gradient_s, "s"),
                f"{scaled(node.memory_bytes, 'B', 1024)} of {scaled(memory, 'B', 1024)}",
                scaled(node.sends_bytes, "B"),
            )
        )
    columns = ">stage|device|array|>layers|from|to|>MACs|>F|>dX|>dW|>memory|>sends"
    parts = counted(plan.num_microbatches, "micro-batch", "es")
    replicas = f" in {plan.replicas} replicas" if plan.replicas > 1 else ""
    title = (
        f"{plan.network}, batch {plan.batch} in {parts} of "
        f"{plan.microbatch}, {plan.order_name}{replicas} over {plan.cluster}"
    )
    yield Table(columns, rows, title)
    told = plan.predicted
    speed = f"{scaled(told.minibatch_s, 's')} a mini-batch, {told.samples_per_s:,.1f} samples/s"
    word = "predicted" if told.level == "machine" else "estimated"
    yield f"{word}: {speed}, bubble {told.bubble_rate:.1%}"
    if any(stage.degrees for stage in plan.stages):
        yield ""
        yield degrees_table(plan)
    if len(plan.nodes) == len(plan.stages):
        yield f"cut: {'optimal' if plan.optimal else 'not proved optimal'} ({plan.reason})"


def degrees_table(plan: Plan) -> Table:
    """The degrees of a plan, layers of equal degrees that follow together."""
    rows = []
    found = [item for stage in plan.stages for item in stage.layer_degrees.items()]
    for degrees, each in groupby(found, key=lambda item: item[1]):
        names = [name for name, _ in each]
        whole = degrees.num_devices == 1
        rows.append((names[0], names[-1], len(names), "whole" if whole else str(degrees)))
    columns = "from|to|>layers|cut into parts by"
    return Table(columns, rows)


def explained_parts(plan: Plan, num: int, found: Sequence[CycleAccount]) -> Iterator[Table | str]:
    """Activities of each array in the cycles of a step, and how busy the engines are.

    Parameters
    ----------
    plan : Plan
    num : int
        Micro-batches of the step.
    found : sequence of CycleAccount
        Account of each node.
    """
    step = f"a step of {counted(num, 'micro-batch', 'es')}, {found[0].cycles:,.0f} cycles"
    for node, account in zip(plan.nodes, found, strict=True):
        for engine in range(account.program.core.num_engines):
            spent = account.spent(engine)
            array = f"array {engine} of {node.device}" if engine else f"array of {node.device}"
            yield ""
            yield Table(
                "the array|>cycles|>share",
                _rows((((each.words,), each.cycles) for each in spent), account.cycles),
                f"{array} in {step}",
            )
            yield ""
            yield Table(
                "layers up to|pass|the array|>cycles|>share",
                _rows(
                    (
                        ((each.layer, each.direction, each.words), each.cycles)
                        for each in spent
                        if each.layer
                    ),
                    account.cycles,
                )[:MOST_ROWS],
                f"{array} by unit and pass",
            )
        busy: dict[str, float] = defaultdict(float)
        for each in account.engines():
            busy[each.engine] += each.cycles
        yield (
            "engines with an instruction under way: "
            + ", ".join(f"{name} {at / account.cycles:.0%}" for name, at in sorted(busy.items()))
        )


def _rows(cells: Iterable[tuple[tuple[str, ...], float]], whole: float) -> list[tuple[str, ...]]:
    """Rows of equal words added up, the largest first, with their cycles and share of the whole."""
    totals: dict[tuple[str, ...], float] = defaultdict(float)
    for words, cycles in cells:
        totals[words] += cycles
    rest = sum(cycles for cycles in totals.values() if cycles < LEAST_SHARE * whole)
    shown = [(words, cycles) for words, cycles in totals.items() if cycles >= LEAST_SHARE * whole]
    shown.sort(key=lambda each: -each[1])
    if rest:
        width = len(next(iter(totals)))
        shown.append(((REST, *[""] * (width - 1)), rest))
    return [(*words, f"{cycles:,.0f}", f"{cycles / whole:.1%}") for words, cycles in shown]
