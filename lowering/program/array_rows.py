"""Rows of the arrays on which a layer's products are computed, read from programs.

They are all of a core that changes the bits of a product: so many products of int8 numbers are
added up exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.isa.instructions import Opcode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fpgapipe.lowering.program.device_program import DeviceProgram


def array_rows(programs: Iterable[DeviceProgram]) -> dict[str, list[int]]:
    """Rows of the array of each device that computes products of a layer, by the layer's name."""
    found: dict[str, list[int]] = {}
    for program in programs:
        kernels = program.kernels_with(Opcode.GEMM)
        for layer in {program.kernels[number].layer for number in kernels}:
            found.setdefault(layer, []).append(program.core.rows)
    return found
