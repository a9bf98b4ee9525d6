"""The hardware of a build: names of the cores, and the resources that they take on their boards."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from fpgapipe.hw.hls_models.resources.core_resources import (
    Resources,
    block_resources,
    column_resources,
    core_resources,
    fixed_resources,
    scratchpad_resources,
)
from fpgapipe.partition.cost.cores import RESOURCES, on_part, over_dies

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.hw.hls_models.spec.device import DeviceSpec

BASIS = (
    "counted by Yosys for its blocks, or derived from them "
    "(hw/hls_models/resources/core_counts.py); not placed by the vendor's tools. "
    "Limits are what a design may use, shell and reserve taken off"
)


def core_name(core: CoreSpec) -> str:
    """Name of a core's files: the size of its array, and a digest of all its parameters."""
    return f"core_{core.rows}x{core.cols}_{core.digest}"


def resources_json(core: CoreSpec, devices: Iterable[DeviceSpec]) -> str:
    """JSON text with the resources that a core takes on each board, or share of a board."""
    boards = {device.place: on_board(core, device) for device in devices}
    value = {
        "core": core_name(core),
        "parameters": dataclasses.asdict(core),
        "basis": BASIS,
        "boards": dict(sorted(boards.items())),
    }
    return json.dumps(value, indent=1) + "\n"


def on_board(core: CoreSpec, device: DeviceSpec) -> dict[str, Any]:
    """Resources that a core takes on a board in all, by block and by die, for JSON."""
    placed = on_part(device, core)
    blocks = block_resources(placed)
    used = core_resources(placed)
    columns = [column_resources(placed)] * (core.cols * core.num_engines)
    dies = over_dies(device, fixed_resources(placed), columns, scratchpad_resources(placed))
    return {
        "blocks": {name: _numbers(each) for name, each in sorted(blocks.items())},
        **_against(used, Resources(*(getattr(device, name) for name in RESOURCES))),
        "dies": [
            {"die": die.name}
            | _against(taken, Resources(*(getattr(die, name) for name in RESOURCES)))
            for die, taken in zip(device.dies, dies, strict=True)
        ],
    }


def _against(used: Resources, limits: Resources) -> dict[str, Any]:
    """Resources that are used, their limits, and what is left."""
    taken, most = _numbers(used), _numbers(limits)
    return {
        "used": taken,
        "limits": most,
        "headroom": {name: most[name] - taken[name] for name in RESOURCES},
    }


def _numbers(resources: Resources) -> dict[str, int]:
    rounded = resources.rounded()
    return {name: int(getattr(rounded, name)) for name in RESOURCES}
