"""Verilog of the bridge between a link and Aurora."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fpgapipe.hw.hls_models.spec.aurora import AuroraSpec


@functools.cache
def bridge_verilog(spec: AuroraSpec) -> str:
    """Return the Verilog of a bridge; its module is named by its parameters."""
    from fpgapipe.host.package.aurora import bridge_name
    from fpgapipe.hw.rtl.link.aurora_bridge import AuroraBridge
    from fpgapipe.hw.rtl.verilog import verilog_of

    return verilog_of(AuroraBridge(spec), bridge_name(spec))
