"""Which of many transfers, in their order, was the last to touch some bytes of memory."""

from collections.abc import Callable

from fpgapipe.hw.hls_models.isa import Span

BUCKET_BITS = 16
"""Spans are found by the buckets of 64 KiB that they reach into."""


class Touched:
    """Spans of memory, each with a number that never falls."""

    def __init__(self) -> None:
        self._buckets: dict[int, list[tuple[int, int, int]]] = {}

    def add(self, span: Span, number: int) -> None:
        """Take a span."""
        for bucket in self._buckets_of(span):
            self._buckets.setdefault(bucket, []).append((*span, number))

    def last(self, span: Span, counts: Callable[[int], bool] = lambda number: True) -> int | None:
        """The highest number, of those that count, of a span that shares a byte with this.

        None if there is none.
        """
        begin, end = span
        found: int | None = None
        for bucket in self._buckets_of(span):
            for low, high, number in reversed(self._buckets.get(bucket, ())):
                if found is not None and number <= found:
                    break
                if low < end and begin < high and counts(number):
                    found = number
                    break
        return found

    @staticmethod
    def _buckets_of(span: Span) -> range:
        begin, end = span
        return range(begin >> BUCKET_BITS, ((end - 1) >> BUCKET_BITS) + 1)
