"""Which cores are tried on each kind of device: those on which formulas find a network fastest."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from fpgapipe.network.operators import Dropout
from fpgapipe.partition.cost.cores import usable_savings, wider_cores
from fpgapipe.partition.cost.cost import candidate_cores, core_fits, core_of
from fpgapipe.partition.search.problem import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fpgapipe.hw.hls_models.spec.device import DeviceSpec
    from fpgapipe.hw.hls_models.spec.node import NodeSpec
    from fpgapipe.hw.hls_models.spec.systolic import Form
    from fpgapipe.partition.cost.cores import Violation
    from fpgapipe.partition.cost.cost import CostModel
    from fpgapipe.partition.explore.candidate import Choice, Option
    from fpgapipe.partition.explore.request import Request

CORES_TRIED = 8
"""Number of cores that are tried per board: those that run the whole network fastest."""

WORTH_SAVINGS = 0.9
"""Most time, as a share of that of the fastest core without savings, of a core with savings that is
tried. By formulas, which are up to 12 % further off for arrays of twice the columns (VGG-16)."""


def core_choices(request: Request, model: CostModel, num_engines: int) -> Iterator[Choice]:
    """Combinations worth trying of a core, with the layers' costs, for each kind of device."""
    return choices_of(ranked_cores(request, model, num_engines))


def choices_of(ranked: dict[DeviceSpec, list[Option]]) -> Iterator[Choice]:
    """Combinations of the first cores of each kind of device."""
    most = CORES_TRIED if len(ranked) == 1 else 2
    for choice in itertools.product(*(each[:most] for each in ranked.values())):
        yield dict(zip(ranked, choice, strict=True))


def ranked_cores(
    request: Request, model: CostModel, num_engines: int
) -> dict[DeviceSpec, list[Option]]:
    """The cores of each kind of device on which formulas find the layers fastest, with costs."""
    kinds = list(dict.fromkeys(request.cluster.devices))
    num_links, form = request.num_links, request.form
    if num_links is None:
        num_links = min(len(request.cluster.devices) - 1, 2)
    random = request.train and any(
        isinstance(layer.operator, Dropout) for layer in model.graph.layers.values()
    )
    ranked = {}
    for device in kinds:
        if request.array:
            none, *more = usable_savings(device, form, num_engines, num_links, random=random)
            excess = []
            for savings in (none, *itertools.chain.from_iterable(more)):
                try:
                    node = core_of(
                        device,
                        *request.array,
                        num_engines,
                        num_links=num_links,
                        scratchpad_bytes=request.scratchpad_bytes,
                        savings=savings,
                    )
                except ValueError as error:
                    if savings is not none:  # packed cells have fewer shapes
                        continue
                    raise PlanError(str(error)) from None
                broken = core_fits(device, node.core)
                if not broken:
                    break
                excess.append(broken)
            if broken:
                broken = min(excess, key=_excess)
                raise PlanError(
                    f"an array of {node.core.rows}x{node.core.cols} does not fit {device.name}: "
                    f"{'; '.join(map(str, broken))}"
                    f"{_what_does(device, num_engines, num_links, form)}"
                )
            nodes: Sequence[NodeSpec] = (node,)
            wider: Sequence[NodeSpec] = ()
        else:
            try:
                nodes = candidate_cores(device, num_engines, num_links, random=random, form=form)
            except ValueError as error:
                raise PlanError(str(error)) from None
            wider = wider_cores(device, num_engines, num_links, form=form)
        options, with_savings = (
            [(node, model.costs(node, train=request.train, as_one=True)) for node in each]
            for each in (nodes, wider)
        )
        enough_s = WORTH_SAVINGS * min(map(_seconds, options))
        options += [option for option in with_savings if _seconds(option) <= enough_s]
        ranked[device] = sorted(options, key=_seconds)[:CORES_TRIED]
    return ranked


def _excess(broken: Sequence[Violation]) -> float:
    """How many times as much as there is of a resource a core needs."""
    return max(each.needed / max(each.available, 1) for each in broken)


def _seconds(option: Option) -> float:
    """Time that all layers take, by formulas."""
    return sum(cost.total_s for cost in option[1])


def _what_does(device: DeviceSpec, num_engines: int, num_links: int, form: Form | None) -> str:
    """The end of the message about an array that does not fit: one that does, if there is any."""
    try:
        fit = candidate_cores(device, num_engines, num_links, form=form)
    except ValueError:
        return "; nor does any other"
    fit += wider_cores(device, num_engines, num_links, form=form)
    core = max((node.core for node in fit), key=lambda core: core.cells)
    return f"; {core.rows}x{core.cols} does"
