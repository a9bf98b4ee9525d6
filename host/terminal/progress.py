"""Progress of a long command: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fpgapipe.host.terminal.escapes import escaped

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

FIRST_S, EVERY_S = 5.0, 60.0
"""Seconds until the first line, and from line to line."""

logger = logging.getLogger(__name__)


def span(seconds: float) -> str:
    """Write a duration in units that suit it: ``8 s``, ``3 min 20 s``, ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


class Display:
    """Progress of a command, whose tasks come one after the other.

    Parameters
    ----------
    bar : Bar or None
        Bar that shows the progress; without one, `line` gives it as text.

    Attributes
    ----------
    subject : str
        What the tasks are about, in front of their descriptions.
    """

    def __init__(self, bar: Bar | None = None) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=None) if bar else None
        self._what = "starting"
        self._unit = ""
        self._done: float | None = None
        self._total: float | None = None
        self._begin_s = self._mark_s = time.monotonic()
        self._mark = 0.0
        self._figures: Mapping[str, Any] = {}
        self.subject = ""

    def add_task(self, description: str, *, total: float | None = None, unit: str = "") -> None:
        """Begin a task: its description, the number of its parts, and the name of the parts."""
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
        """Update the task's description, parts done and parts in all; None leaves one as it is."""
        if description is not None:
            self._what = self.subject + description
        if completed is not None:
            if self._done is None or completed < self._done:
                # The rate is counted from here, since parts that an earlier run has done took no
                # time in this one.
                self._mark, self._mark_s = completed, time.monotonic()
            self._done = completed
        if total is not None:
            self._total = total
        if self._bar and self._task is not None:
            self._bar.update(
                self._task,
                description=escaped(self._what, is_cell=True),
                completed=self._done,
                total=self._total,
            )

    def count(self, done: float, total: float) -> None:
        """Update the parts that are done, and their number in all."""
        self.update(completed=done, total=total)

    def figures(self, figures: Mapping[str, Any]) -> None:
        """Set what the command knows in numbers, which `record` adds to what is shown as text."""
        self._figures = figures

    def record(self) -> str:
        """The progress as a line of JSON."""
        shown = {
            "what": self._what,
            "done": self._done,
            "total": self._total,
            "unit": self._unit or None,
            "wall_s": round(time.monotonic() - self._begin_s, 3),
        }
        return json.dumps({"progress": {**shown, **self._figures}})

    def line(self) -> str:
        """The progress as text: description, parts done, rate, time left and time so far."""
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


Progress = Callable[[], contextlib.AbstractContextManager[Display]]
"""Function that shows the progress of what is done within its context."""


def silent() -> contextlib.AbstractContextManager[Display]:
    """Show no progress."""
    return contextlib.nullcontext(Display())


def about(progress: Progress, subject: str) -> Progress:
    """Show the progress of tasks with a subject in front of their descriptions."""

    @contextlib.contextmanager
    def shown() -> Iterator[Display]:
        with progress() as display:
            display.subject = subject
            yield display

    return shown


@contextlib.contextmanager
def lines_of(display: Display, *, as_json: bool = False) -> Iterator[None]:
    """Log a line now and then from a separate thread, even if no progress is reported.

    With `as_json`, each line is a JSON object, which goes to standard error whatever is logged.
    """
    over = threading.Event()

    def say() -> None:
        wait_s = FIRST_S
        while not over.wait(wait_s):
            if as_json:
                print(display.record(), file=sys.stderr, flush=True)
            else:
                logger.info("%s", display.line())
            wait_s = EVERY_S

    thread = threading.Thread(target=say, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
