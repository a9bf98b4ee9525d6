"""Counters of a simulated cluster as a trace in Chrome's JSON form, as in `perfetto`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fpgapipe.host.report.drawing.perfetto import metadata

if TYPE_CHECKING:
    from fpgapipe.sim_tb.cluster.sampling import Sample


def counter_trace(
    samples: Sequence[Sample], names: Sequence[str], clock_hz: float
) -> dict[str, Any]:
    """Make a trace: a process for each device, in it a track for each counter that rose.

    Between two samples a track shows the increase of the counter per cycle: the share of cycles
    in which an engine was busy or waited, bytes a cycle, or words a cycle. At the last sample it
    is 0.

    Parameters
    ----------
    samples : sequence of Sample
        In the order of their cycles.
    names : sequence of str
        Names of the devices.
    clock_hz : float
        Clock frequency that turns cycles into microseconds, Hz.

    Returns
    -------
    dict
        Trace for ``json.dump``; equal samples give an equal trace.

    Raises
    ------
    ValueError
        If the clock is not above 0.
    """
    if not clock_hz > 0:
        raise ValueError(f"the clock must be above 0 Hz, not {clock_hz!r}")
    events: list[dict[str, Any]] = []
    for device, name in enumerate(names):
        events.append(metadata("process_name", device, None, name=name))
        events.append(metadata("process_sort_index", device, None, sort_index=device))
    for device in range(len(names)):
        events += _events(device, [each for each in samples if each.node == device], clock_hz)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"clock_hz": clock_hz, "samples": len(samples)},
    }


def _events(device: int, samples: Sequence[Sample], clock_hz: float) -> Iterator[dict[str, Any]]:
    if len(samples) < 2:
        return
    for name in samples[0].counters:
        if samples[0].counters[name] == samples[-1].counters[name]:
            continue
        rates = [
            (after.counters[name] - before.counters[name]) / (after.cycle - before.cycle)
            for before, after in pairwise(samples)
        ]
        last: float | None = None
        for sample, rate in zip(samples, [*rates, 0.0], strict=True):
            if rate == last:
                continue
            last = rate
            yield {
                "ph": "C",
                "name": name,
                "pid": device,
                "ts": round(sample.cycle / clock_hz * 1e9) / 1000,
                "args": {"per cycle": rate},
            }
