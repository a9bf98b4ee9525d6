"""The levels of checks, by name."""

from __future__ import annotations

from collections.abc import Callable

from .checks import Subject, Verdict, check_import, check_model, check_numeric, judged
from .cuts import check_cuts, check_hardware
from .exports import check_onnx

CHECKS: dict[str, Callable[[Subject], None]] = {
    "import": check_import,
    "model": check_model,
    "check": check_numeric,
    "cuts": check_cuts,
    "onnx": check_onnx,
    "hardware": check_hardware,
}

NEEDS: dict[str, tuple[str, ...]] = dict.fromkeys(CHECKS, ("import", "model")) | {
    "import": (),
    "model": ("import",),
    "onnx": ("import",),
}
"""Levels without which another one is not checked."""


def verdicts_of(subject: Subject, levels: tuple[str, ...]) -> dict[str, Verdict]:
    """The verdicts of the import, of levels and of what they need, as far as that holds."""
    found: dict[str, Verdict] = {}
    wanted = {"import", *levels, *(need for level in levels for need in NEEDS[level])}
    for level in (each for each in CHECKS if each in wanted):
        if all(found[need].outcome == "right" for need in NEEDS[level] if need in found):
            check = CHECKS[level]
            found[level] = judged(lambda check=check: check(subject))  # type: ignore[misc]
    return found
