"""The option that says the array of each device."""

from __future__ import annotations

import re

from fpgapipe.errors import UserError, shown
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
from fpgapipe.hw.hls_models.spec.systolic import Form


def parse_array(text: str | None, cells: str | None = None) -> tuple[int, int] | None:
    """Rows and columns of an array, written as ``8x8``; None for None.

    Raises
    ------
    UserError
        If the text does not have this form, or no core has such an array of these cells.
    """
    if text is None:
        return None
    if found := re.fullmatch(r"(\d{1,4})[xX](\d{1,4})", text, re.ASCII):
        rows, cols = int(found[1]), int(found[2])
        if 1 <= rows <= 1024 and 1 <= cols <= 1024:
            try:
                CoreSpec(rows, cols, form=Form(cells or Form.PLAIN))
            except ValueError as error:
                raise UserError(f"no core has the array of --array {text}: {error}") from None
            return rows, cols
    raise UserError(f"--array must be ROWSxCOLS, each 1..1024, such as 8x8, not {shown(text)}")
