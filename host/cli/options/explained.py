"""Tables of where the cycles of a step go, for ``fpgapipe plan --explain``."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fpgapipe.partition.plan import Plan
    from fpgapipe.partition.pricing.cycle_account import CycleAccount

LEAST_SHARE = 0.005
"""Rows with a smaller share of the step are added up in one row."""

MOST_ROWS = 16
"""Rows of units and passes that are shown of each device."""

REST = "all else"


def explained_json(plan: Plan, count: int, found: Sequence[CycleAccount]) -> dict[str, Any]:
    """The accounts of all devices for JSON."""
    return {
        "num_microbatches": count,
        "cycles": found[0].cycles,
        "devices": [
            {"device": stage.device, **account.to_dict()}
            for stage, account in zip(plan.stages, found, strict=True)
        ],
    }


def print_explained(plan: Plan, count: int, found: Sequence[CycleAccount]) -> None:
    """Print what each array does in the cycles of a step, and how busy the engines are."""
    from fpgapipe.host.terminal.console import Column, print_table

    step = f"a step of {count} micro-batches, {found[0].cycles:,.0f} cycles"
    for stage, account in zip(plan.stages, found, strict=True):
        for engine in range(account.program.core.num_engines):
            spent = account.spent(engine)
            array = f"array {engine} of {stage.device}" if engine else f"array of {stage.device}"
            print()
            print_table(
                [Column("the array"), Column("cycles", True), Column("share", True)],
                _rows((((each.words,), each.cycles) for each in spent), account.cycles),
                f"{array} in {step}",
            )
            print()
            print_table(
                [
                    *map(Column, ("layers up to", "pass", "the array")),
                    Column("cycles", True),
                    Column("share", True),
                ],
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
        print(
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
