"""Ends a test that hangs. It is no stopwatch: a slow machine must not fail a test."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT_S = 60


@contextmanager
def hang_guard(limit_s: int = LIMIT_S) -> Iterator[None]:
    """Raise an `AssertionError` in what still runs after so many seconds."""

    def stop(*_: object) -> None:
        raise AssertionError(f"still running after {limit_s} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(limit_s)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
