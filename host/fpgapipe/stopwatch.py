"""Where the time of a command goes: seconds of each phase, without those of phases within it."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_seconds: dict[str, float] = {}
_open: list[tuple[str, float]] = []


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Count the seconds that the body takes; only the main thread is counted.

    Parameters
    ----------
    name : str
        Name of the phase, a noun phrase: "compilation of the simulator".
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _note()
    _open.append((name, time.perf_counter()))
    try:
        yield
    finally:
        _note()
        _open.pop()
        if _open:
            _open[-1] = (_open[-1][0], time.perf_counter())


def _note() -> None:
    """Add the seconds since the last change to the innermost phase."""
    if _open:
        name, begin = _open[-1]
        now = time.perf_counter()
        _seconds[name] = _seconds.get(name, 0.0) + now - begin
        _open[-1] = (name, now)


def phases() -> dict[str, float]:
    """Seconds of each phase, in the order of their first beginning; the counts are then reset."""
    found = dict(_seconds)
    _seconds.clear()
    return found
