"""Defers Ctrl-C to where it does no harm, and treats SIGTERM and SIGHUP like Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType


class Interrupts:
    """Defers Ctrl-C until the next block in which it is `allowed`; a context manager.

    It does nothing in a thread that is not the main one, or if another handler for Ctrl-C is set.
    """

    def __init__(self) -> None:
        self._is_allowed = self._has_come = self._minds = False

    def __enter__(self) -> Self:
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            signal.signal(signal.SIGINT, self._come)
            self._minds = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._minds:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._has_come and kind is None:
            raise KeyboardInterrupt

    def _come(self, number: int, frame: FrameType | None) -> None:
        if not self._is_allowed:
            self._has_come = True
            return
        self._is_allowed = False
        raise KeyboardInterrupt

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Block in which `KeyboardInterrupt` may be raised, at its beginning if one is pending."""
        if self._has_come:
            self._has_come = False
            raise KeyboardInterrupt
        self._is_allowed = True
        try:
            yield
        finally:
            self._is_allowed = False


@contextlib.contextmanager
def terminations() -> Iterator[list[int]]:
    """Let SIGTERM and SIGHUP end the process as Ctrl-C does, so that nothing is left half done.

    It gives a list to which the number of a signal is added when the signal comes. A signal that is
    ignored stays ignored, which nohup relies on for SIGHUP. In a thread that is not the main one,
    this does nothing.
    """
    come: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        come.append(number)
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # shells let background processes ignore Ctrl-C
            handler = signal.default_int_handler
        handler(signal.SIGINT, frame)

    if threading.current_thread() is not threading.main_thread():
        yield come
        return
    before = {
        number: signal.signal(number, end)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield come
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
