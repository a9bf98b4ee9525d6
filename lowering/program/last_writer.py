"""Which of many transfers, in their order, was the last to touch some bytes of memory."""

from collections.abc import Callable, Sequence

from fpgapipe.hw.hls_models.isa.instructions import Span

FINE_BITS = 16
"""Spans are found by the buckets of 64 KiB that they reach into."""

COARSE_BITS = 24
"""Those of more than `FINE_BYTES` are found by buckets of 16 MiB: rows of a large matrix, say,
reach from its beginning to its end."""

FINE_BYTES = 1 << 20

Spans = list[tuple[int, int, int]]
"""First byte, the one behind the last, and number."""


class LastWriters:
    """Spans of memory, each with a number that never falls."""

    def __init__(self) -> None:
        self._fine: dict[int, Spans] = {}
        self._coarse: dict[int, Spans] = {}
        self._latest: dict[int, int] = {}  # of spans in fine buckets, by coarse bucket

    def add(self, span: Span, number: int) -> None:
        """Take a span."""
        entry = (*span, number)
        if span[1] - span[0] > FINE_BYTES:
            for bucket in _buckets(span, COARSE_BITS):
                self._coarse.setdefault(bucket, []).append(entry)
            return
        for bucket in _buckets(span, FINE_BITS):
            self._fine.setdefault(bucket, []).append(entry)
        for bucket in _buckets(span, COARSE_BITS):
            self._latest[bucket] = number

    def last(self, span: Span, counts: Callable[[int], bool] = lambda number: True) -> int | None:
        """The highest number, of those that count, of a span that shares a byte with this.

        None if there is none.
        """
        begin, end = span
        if end <= begin:
            return None
        found = -1
        first, last = begin >> FINE_BITS, (end - 1) >> FINE_BITS
        parts = COARSE_BITS - FINE_BITS
        for coarse in _buckets(span, COARSE_BITS):
            found = _latest(self._coarse.get(coarse, ()), span, found, counts)
            if self._latest.get(coarse, -1) <= found:
                continue
            for fine in range(
                max(first, coarse << parts), min(last, ((coarse + 1) << parts) - 1) + 1
            ):
                found = _latest(self._fine.get(fine, ()), span, found, counts)
        return None if found < 0 else found


def _latest(
    spans: Sequence[tuple[int, int, int]], span: Span, found: int, counts: Callable[[int], bool]
) -> int:
    """The highest of `found` and the numbers that count of those that share a byte with a span."""
    begin, end = span
    for low, high, number in reversed(spans):
        if number <= found:
            break
        if low < end and begin < high and counts(number):
            return number
    return found


def _buckets(span: Span, bits: int) -> range:
    begin, end = span
    return range(begin >> bits, ((end - 1) >> bits) + 1)
