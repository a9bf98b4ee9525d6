"""Plans of version 3, in which each device had a stage of its own, as plans of today."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

_SHARED, _PARTS = "data-parallel", "layer-wise"


def is_version_3(data: bytes) -> bool:
    """Whether a text is one of a plan of version 3."""
    try:
        return bool(json.loads(data)["version"] == 3)
    except (ValueError, KeyError, TypeError):
        return False


def of_this_version(data: bytes) -> bytes:
    """The text of a plan in the form of today; what is no plan of version 3 stays as it is."""
    if not is_version_3(data):
        return data
    try:
        return json.dumps(_converted(json.loads(data))).encode()
    except (KeyError, TypeError, AttributeError):
        return data  # whose faults are told by those who read it


def _converted(old: dict[str, Any]) -> dict[str, Any]:
    """The plan as nested values of JSON."""
    devices, degrees = list(old["stages"]), old.get("degrees")
    together = degrees is not None or old["schedule"] == _SHARED
    runs = groupby(devices, lambda each: (each["layers"], together or id(each)))
    stages = []
    for (names, _), own in runs:
        nodes = [_node(device) for device in own]
        stage = {"layers": names, "nodes": nodes}
        if len(nodes) > 1:
            cuts = degrees or {name: {"sample": len(nodes)} for name in names}
            stage["degrees"] = {name: cuts[name] for name in names if cuts[name]}
        stages.append(stage)
    schedule = "1f1b-as" if old["schedule"] in (_SHARED, _PARTS) else old["schedule"]
    rest = {name: each for name, each in old.items() if name != "degrees"}
    return rest | {"version": 4, "schedule": schedule, "stages": stages}


def _node(old: dict[str, Any]) -> dict[str, Any]:
    core = old["core"]
    vector = {"lanes": core["vector_lanes"], "function_lanes": core["function_lanes"]}
    port_bytes = core.get("scratchpad_port_bytes", 64)
    spec = {
        "core": {
            "rows": core["rows"],
            "cols": core["cols"],
            "num_engines": core["num_engines"],
            "acc_depth": core["acc_depth"],
            "scratchpad": {
                "banks": core["scratchpad_banks"],
                "bank_bytes": core["scratchpad_bank_bytes"],
                "port_bytes": port_bytes,
            },
            "bus_bytes": core["bus_bytes"],
            "outstanding": 64 if port_bytes == 64 else 16,
            "vector": vector | {"random": core.get("random", True)},
            "links": core["links"],
            "counters": core.get("counters", True),
        },
        "clk_hz": core["clk_hz"],
        "memory_bytes_per_cycle": core["memory_bytes_per_cycle"],
        "memory_latency_cycles": core["memory_latency_cycles"],
    }
    kept = {name: each for name, each in old.items() if name not in ("core", "layers")}
    return kept | {"spec": spec}
