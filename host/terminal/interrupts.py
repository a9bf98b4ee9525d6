"""Defers Ctrl-C to where it does no harm, and treats signals that end a process like Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, NoReturn, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType


ENDINGS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that end a command as Ctrl-C does.

Launchers and batch systems send SIGUSR1 to ask for a checkpoint: the launcher of Open MPI passes it
on, while it kills all processes soon after Ctrl-C or SIGTERM.
"""


LOOK_S = 0.2
"""Seconds after which a wait looks for signals that another thread has received."""

NUDGE = signal.SIGURG
"""Signal that lets the main thread look for signals which another thread has received."""

TOLD_S = 5.0
"""Most seconds that a command waits for what it says of a signal."""

_listeners: list[Callable[[str], object]] = []
_pipes: list[int] = []
_has_told = threading.Event()


def wait_for_ctrl_c() -> NoReturn:
    """Wait until a signal raises `KeyboardInterrupt`.

    The kernel may hand a signal to any thread, as it does while the main one is still stopped.
    Python handles it when the main thread runs again, which a wait without end never does.
    """
    never = threading.Event()
    while True:
        never.wait(LOOK_S)


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
def kept(on_come: Callable[[], object] | None = None) -> Iterator[list[int]]:
    """Keep Ctrl-C to the end of the context; gives a list that is no longer empty if it has come.

    `on_come` is called at once. In a thread that is not the main one, this does nothing.
    """
    come: list[int] = []

    def keep(number: int, frame: FrameType | None) -> None:
        come.append(number)
        if on_come:
            on_come()

    if threading.current_thread() is not threading.main_thread():
        yield come
        return
    before = signal.signal(signal.SIGINT, keep)
    try:
        yield come
    finally:
        signal.signal(signal.SIGINT, before)
        if come and callable(before):
            before(signal.SIGINT, None)


@contextlib.contextmanager
def terminations(come: list[int] | None = None) -> Iterator[list[int]]:
    """Let `ENDINGS` end the process as Ctrl-C does, so that nothing is left half done.

    It gives a list, the one that it is given or a new one, to which the number of a signal is added
    when the signal comes. A signal that is
    ignored stays ignored, which nohup relies on for SIGHUP. In a thread that is not the main one,
    this does nothing. Meanwhile, a signal that another thread has received reaches the main one,
    also while that waits, and `told_of_ending` works.
    """
    come = [] if come is None else come

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
        for number in ENDINGS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        with _watched():
            yield come
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def told_of_ending(tell: Callable[[str], object]) -> Iterator[None]:
    """Have a function called with the name of a signal that asks a command to end.

    Another thread calls it as soon as the signal comes, whatever the main thread does, and has done
    so when the context ends. Only commands are told, in `terminations`.
    """
    _listeners.append(tell)
    try:
        yield
    finally:
        if _pipes:
            _has_told.clear()
            os.write(_pipes[-1], b"\0")
            _has_told.wait(TOLD_S)
        _listeners.remove(tell)


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """Let a thread see signals as they come."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    thread = threading.Thread(
        target=_watch, args=(reading, threading.main_thread().ident), daemon=True
    )
    thread.start()
    nudged = signal.signal(NUDGE, lambda number, frame: None)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    _pipes.append(writing)
    try:
        yield
    finally:
        _pipes.remove(writing)
        signal.set_wakeup_fd(before)
        os.close(writing)
        thread.join()
        signal.signal(NUDGE, nudged)


def _watch(reading: int, main: int) -> None:
    """Pass signals on, whose numbers come from a pipe, until that is closed."""
    while numbers := os.read(reading, 64):
        for number in numbers:
            if number == 0:
                _has_told.set()
            elif number in (signal.SIGINT, *ENDINGS):
                for tell in list(_listeners):
                    with contextlib.suppress(Exception):
                        tell(signal.Signals(number).name)
                # Python's handler runs in the main thread, which leaves a wait for a signal alone.
                signal.pthread_kill(main, NUDGE)
    os.close(reading)
