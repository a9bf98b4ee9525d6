"""A table that finds the last of many numbered transfers that accessed given bytes of memory."""

from collections.abc import Callable

from fpgapipe.hw.hls_models.isa.instructions import Span

FINE_BITS = 16
"""Address bits within a fine bucket: spans are found by the 64 KiB buckets that they overlap."""

COARSE_BITS = 24
"""Address bits within a coarse bucket, 16 MiB, by which spans of more than `FINE_BYTES` are found.

For example, the span of a transfer of some columns of a large matrix has almost its whole size.
"""

FINE_BYTES = 1 << 20

Spans = list[tuple[int, int, int]]
"""Entries of a bucket: first byte, the byte after the last, and number."""


class LastWriters:
    """A table of memory spans, each with a number; the numbers must be added in order."""

    def __init__(self) -> None:
        self._fine: dict[int, Spans] = {}
        self._coarse: dict[int, Spans] = {}
        self._latest: dict[int, int] = {}  # latest number of fine spans, by coarse bucket

    def add(self, span: Span, number: int) -> None:
        """Add a span, with a number that is at least as high as all before."""
        entry = (*span, number)
        if span[1] - span[0] > FINE_BYTES:
            for bucket in _buckets(span, COARSE_BITS):
                self._coarse.setdefault(bucket, []).append(entry)
            return
        for bucket in _buckets(span, FINE_BITS):
            self._fine.setdefault(bucket, []).append(entry)
        for bucket in _buckets(span, COARSE_BITS):
            self._latest[bucket] = number

    def last(self, span: Span, counts: Callable[[int], bool] | None = None) -> int | None:
        """Return the highest number of a recorded span that overlaps a span.

        Only numbers for which `counts` is true are considered, all if it is left out. The result
        is None if there are none.
        """
        begin, end = span
        if end <= begin:
            return None
        found = -1
        first, last = begin >> FINE_BITS, (end - 1) >> FINE_BITS
        parts = COARSE_BITS - FINE_BITS
        for coarse in range(first >> parts, (last >> parts) + 1):
            if spans := self._coarse.get(coarse):
                found = _latest(spans, begin, end, found, counts)
            if self._latest.get(coarse, -1) <= found:
                continue
            low, high = max(first, coarse << parts), min(last, ((coarse + 1) << parts) - 1)
            for fine in range(low, high + 1):
                if (spans := self._fine.get(fine)) and spans[-1][2] > found:
                    found = _latest(spans, begin, end, found, counts)
        return None if found < 0 else found


def _latest(
    spans: Spans, begin: int, end: int, found: int, counts: Callable[[int], bool] | None
) -> int:
    """The highest number above `found` that counts and whose span overlaps, or else `found`."""
    for low, high, number in reversed(spans):
        if number <= found:
            break
        if low < end and begin < high and (counts is None or counts(number)):
            return number
    return found


def _buckets(span: Span, bits: int) -> range:
    begin, end = span
    return range(begin >> bits, ((end - 1) >> bits) + 1)
