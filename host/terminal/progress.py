"""What a long command says meanwhile: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress

FIRST_S, EVERY_S = 5.0, 20.0
"""Seconds to the first line, and from line to line."""

logger = logging.getLogger(__name__)


def span(seconds: float) -> str:
    """Write a time as people say it: ``8 s``, ``3 min 20 s``, ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


class Display:
    """Progress of one task after the other.

    Parameters
    ----------
    bar : Progress or None
        What draws it; without one, `line` says it.
    """

    def __init__(self, bar: Progress | None = None) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=None) if bar else None
        self._what = "starting"
        self._unit = ""
        self._done: float | None = None
        self._total: float | None = None
        self._begin_s = self._mark_s = time.monotonic()
        self._mark = 0.0

    def add_task(self, description: str, *, total: float | None = None, unit: str = "") -> None:
        """Begin with something: what is done, how many parts it has, and their name."""
        self._unit, self._done, self._total = unit, None, None
        self._begin_s = time.monotonic()
        self.update(description=description, total=total)

    def update(
        self,
        *,
        description: str | None = None,
        completed: float | None = None,
        total: float | None = None,
    ) -> None:
        """Say how far it is; what is left out stays as it was."""
        if description is not None:
            self._what = description
        if completed is not None:
            if self._done is None or completed < self._done:
                # The rate counts from here: what an earlier run has done took no time of this one.
                self._mark, self._mark_s = completed, time.monotonic()
            self._done = completed
        if total is not None:
            self._total = total
        if self._bar and self._task is not None:
            self._bar.update(
                self._task, description=self._what, completed=self._done, total=self._total
            )

    def line(self) -> str:
        """What is done, how far, the rate, and the time left."""
        now = time.monotonic()
        parts = [self._what]
        if self._done is not None:
            of = f" of {self._total:,.0f}" if self._total else ""
            parts.append(f"{self._done:,.0f}{of} {self._unit}".rstrip())
            rate = (self._done - self._mark) / max(now - self._mark_s, 1e-9)
            if rate > 0:
                parts.append(f"{rate:,.3g}/s" if rate < 1000 else f"{rate:,.0f}/s")
                if self._total and self._total > self._done:
                    parts.append(f"about {span((self._total - self._done) / rate)} left")
        parts.append(f"{span(now - self._begin_s)} so far")
        return ", ".join(parts)


@contextlib.contextmanager
def lines_of(display: Display) -> Iterator[None]:
    """Log a line now and then, from a thread of its own: also while nothing is reported."""
    over = threading.Event()

    def say() -> None:
        wait_s = FIRST_S
        while not over.wait(wait_s):
            logger.info("%s", display.line())
            wait_s = EVERY_S

    thread = threading.Thread(target=say, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
