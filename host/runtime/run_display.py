"""The display of a run's progress."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from fpgapipe.host.runtime.training import Watcher
from fpgapipe.host.terminal.console import count, scaled
from fpgapipe.host.terminal.progress import span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fpgapipe.host.terminal.progress import Display

logger = logging.getLogger(__name__)


class RunDisplay(Watcher):
    """Shows loss, accuracy, cycles of a mini-batch, and samples per second at the clock.

    Each validation is also logged, as one line.

    Parameters
    ----------
    display : Display
    clk_hz : float
        Clock frequency of the devices, Hz.
    expected_cycles : float
        Approximate cycles of a mini-batch; replaced by those of the last simulated one.
    """

    def __init__(self, display: Display, clk_hz: float, expected_cycles: float) -> None:
        self._display = display
        self._clk_hz = clk_hz
        self._expected = expected_cycles
        self._of_step = -1
        self._begin = 0, 0.0
        display.add_task("preparing the run", unit="mini-batches")
        self._text = ""
        self._validated = ""
        self._done = self._total = 0

    def begin(self, done: int, total: int) -> None:
        """See `Watcher`."""
        self._done, self._total = done, total

    def cycles(self, step: int, cycles: int, shares: Sequence[float] = ()) -> None:
        """See `Watcher`."""
        now = time.monotonic()
        if self._of_step != step:
            self._of_step, self._begin = step, (cycles, now)
        expected = max(self._expected, cycles)
        text = f"step {step}: {count(cycles)} of about {count(expected)} cycles"
        rate = (cycles - self._begin[0]) / max(now - self._begin[1], 1e-9)
        left_s = run_s = None
        if rate > 0:
            text += f" at {scaled(rate, 'cycles/s')}"
            left_s = (expected - cycles) / rate
            run_s = left_s + max(self._total - self._done - 1, 0) * expected / rate
            if cycles < expected:
                text += f", its end in {span(left_s)}"
            if self._total > self._done + 1:
                text += f", that of the run in {span(run_s)}"
        if shares:
            text += f", devices at {' '.join(f'{share:.0%}' for share in shares)}"
        self._display.figures(
            {
                "step": step,
                "steps": self._total or None,
                "cycles": cycles,
                "expected_cycles": round(expected),
                "cycles_per_s": rate and round(rate, 1),
                "step_left_s": left_s and round(left_s, 1),
                "run_left_s": run_s and round(run_s, 1),
                "devices": [round(share, 4) for share in shares],
            }
        )
        self._display.update(description="  ".join(filter(None, [text, self._text])))

    def step(self, line: Mapping[str, Any], done: int, total: int) -> None:
        """See `Watcher`."""
        self._done, self._total = done, total
        self._display.figures({})
        parts = [] if line["loss"] is None else [f"loss {line['loss']:.4f}"]
        if line["labels"]:
            parts.append(f"{line['correct'] / line['labels']:.0%} right")
        if line["cycles"]:
            self._expected = line["cycles"]
            parts.append(f"{count(line['cycles'])} cycles")
            rate = line["samples"] / line["cycles"] * self._clk_hz
            parts.append(f"{scaled(rate, 'samples/s')} at {scaled(self._clk_hz, 'Hz')}")
        self._text = "  ".join(parts)
        self._display.update(
            description="  ".join(filter(None, [self._text, self._validated])),
            completed=done,
            total=total,
        )

    def validation(self, line: Mapping[str, Any]) -> None:
        """See `Watcher`."""
        found = line["validation"]
        if found["accuracy"] is None:
            return
        self._validated = f"validation {found['accuracy']:.1%}"
        logger.info(
            "epoch %d, step %d: %s (%s samples)",
            found["epoch"],
            found["step"],
            self._validated,
            count(found["samples"]),
        )
