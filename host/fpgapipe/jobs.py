"""Jobs that do not depend on each other: done by this process, or shared out among several.

A search calls `results` and does not know which processes there are. A command says so with
`sharing`: processes on the other processors of this machine (`other_processors`), which are
started only for jobs that take long, or the ranks of MPI (`fpgapipe.host.backends.ranks`), which
are there in any case. The results, and the error if there is one, are the same everywhere.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from concurrent.futures import Future, InvalidStateError
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from fpgapipe.errors import UserError, shown
from fpgapipe.garbage import collect_rarely

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from types import FrameType

    Pools = Callable[[], AbstractContextManager["Pool"]]

Result = TypeVar("Result")


PROCESS_BYTES = 3 << 30
"""Memory of a process that does jobs: comparing ways to train ResNet-50 took 2.4 GiB."""


PATIENCE_S = 2.0
"""Seconds that jobs have to end after a signal, before their processes are killed."""


class Pool(Protocol):
    """Other processes that do jobs; an executor of `concurrent.futures` is one."""

    def submit(self, function: Callable[..., Result], /, *arguments: Any) -> Future[Result]:
        """Let another process call a function; whatever travels must be fit for pickle."""


class _Shared(NamedTuple):
    """How jobs are shared: with processes that are there, or that start for jobs that take long."""

    pools: Pools | None
    most_started: int = 0

    def opened(self, jobs: int) -> AbstractContextManager[Pool]:
        """Other processes for so many jobs, one of which is for this process."""
        return self.pools() if self.pools else local_processes(min(self.most_started, jobs - 1))


_sharing: ContextVar[_Shared | None] = ContextVar("sharing", default=None)


@contextlib.contextmanager
def sharing(pools: Pools) -> Iterator[None]:
    """Share jobs within this context.

    Parameters
    ----------
    pools : callable
        Opens the other processes; it is called whenever there are several jobs.
    """
    with _shared_by(_Shared(pools)):
        yield


@contextlib.contextmanager
def _shared_by(shared: _Shared | None) -> Iterator[None]:
    before = _sharing.set(shared)
    try:
        yield
    finally:
        _sharing.reset(before)


def starts_processes() -> bool:
    """Whether processes start for jobs that take long."""
    shared = _sharing.get()
    return shared is not None and shared.pools is None


@contextlib.contextmanager
def other_processors() -> Iterator[None]:
    """Share jobs that take long among the processors of this machine, unless ranks do all jobs.

    ``FPGAPIPE_JOBS`` says how many are at work, this one included, if that is set; else as many as
    the machine has processors, and memory for (`PROCESS_BYTES`). A script that does this needs
    Python's ``if __name__ == "__main__"``, as processes begin by importing it.

    Raises
    ------
    UserError
        If ``FPGAPIPE_JOBS`` is no number above 0.
    """
    told = os.environ.get("FPGAPIPE_JOBS", "")
    if told and not (told.isdecimal() and int(told)):
        raise UserError(f"FPGAPIPE_JOBS must be a number of processes from 1, not {shown(told)}")
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    most = min(len(os.sched_getaffinity(0)), memory_bytes // PROCESS_BYTES)
    count = int(told) if told else most
    shared = _sharing.get()
    if shared is None and count > 1:
        shared = _Shared(None, count - 1)
    with _shared_by(shared):
        yield


@contextlib.contextmanager
def local_processes(count: int) -> Iterator[Pool]:
    """Open up to so many processes besides this one, which end with the context.

    If it ends by an error, such as Ctrl-C, so do the jobs that they have begun. Signals of the
    terminal are for this process alone, and the others end if it is no longer there.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing.connection import wait

    others = set(multiprocessing.active_children())
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=spawn, initializer=_begin) as executor:
        try:
            yield _Processes(executor)
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            begun = set(multiprocessing.active_children()) - others
            last_s = time.monotonic() + PATIENCE_S
            for each in begun:
                each.terminate()
            for each in begun:
                wait([each.sentinel], max(last_s - time.monotonic(), 0))
                if each.is_alive():  # a destructor, say, has swallowed the signal
                    each.kill()
            raise


class _Processes(NamedTuple):
    """Processes whose jobs end by SIGTERM, where the processes themselves do not."""

    executor: Pool

    def submit(self, function: Callable[..., Result], /, *arguments: Any) -> Future[Result]:
        future = self.executor.submit(_do, function, *arguments)
        future.__class__ = _Cancellable
        return future


class _Cancellable(Future[Any]):
    """A job that may be cancelled before the process dies that was to do it.

    Before Python 3.12.1 (python/cpython#108974) the executor's thread ended there by an error, and
    left its other processes behind.
    """

    def set_exception(self, exception: BaseException | None) -> None:
        with contextlib.suppress(InvalidStateError):
            super().set_exception(exception)


_doing, _ended = threading.Event(), threading.Event()
"""Whether this process does a job for another one, and whether it is to do no more."""


def _do(function: Callable[..., Result], *arguments: Any) -> Result:
    try:
        _doing.set()
        if _ended.is_set():  # jobs wait in the process, too
            raise KeyboardInterrupt
        return function(*arguments)
    finally:
        _doing.clear()


def _begin() -> None:
    """Prepare a process that does jobs for another one."""
    collect_rarely()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_job)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_job(number: int, frame: FrameType | None) -> None:
    _ended.set()
    if _doing.is_set():
        raise KeyboardInterrupt


def _end_with_parent() -> None:
    import multiprocessing

    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def results(
    function: Callable[..., Result],
    jobs: Sequence[tuple[Any, ...]],
    on_step: Callable[[int, int], object] = lambda done, total: None,
    kept: list[Result] | None = None,
    *,
    are_long: bool = False,
) -> list[Result]:
    """Call a function with each of some arguments.

    Parameters
    ----------
    function : callable
        A function of a module, or a `functools.partial` of one. Jobs within a job are not shared.
    jobs : sequence of tuple
        Arguments of each call. Those that take longest should come first.
    on_step : function
        Called with the number of calls that are done and of all.
    kept : list, optional
        Gets the results from the first on, also if the user ends the search: for who shows what is
        there.
    are_long : bool
        Whether most jobs take seconds, so that processes may be started for them.

    Returns
    -------
    list
        What the calls return, in the order of `jobs`.

    Raises
    ------
    BaseException
        What the first call in this order raises, whichever call has ended first.
    """
    shared = _sharing.get()
    found: list[Result] = [] if kept is None else kept
    if shared is None or len(jobs) < 2 or not (shared.pools or are_long):
        for number, job in enumerate(jobs):
            on_step(number, len(jobs))
            found.append(function(*job))
        on_step(len(jobs), len(jobs))
        return found
    with _shared_by(None), shared.opened(len(jobs)) as pool:
        return _shared(pool, function, jobs, on_step, found)


def _shared(
    pool: Pool,
    function: Callable[..., Result],
    jobs: Sequence[tuple[Any, ...]],
    on_step: Callable[[int, int], object],
    found: list[Result],
) -> list[Result]:
    """Do jobs from the last one on while other processes do them from the first one on.

    What a process had begun with that has died, as for want of memory, is done here.
    """
    from concurrent.futures import BrokenExecutor

    futures = [pool.submit(function, *job) for job in jobs]
    mine: dict[int, Future[Result]] = {}

    def tell() -> None:
        others = sum(each.done() and not each.cancelled() for each in futures)
        on_step(len(mine) + others, len(jobs))

    def first_failed() -> int:
        """Number of the first job of which another process has told an error."""
        ended = (n for n, each in enumerate(futures) if each.done() and not each.cancelled())
        errors = ((n, futures[n].exception()) for n in ended)
        told = (n for n, error in errors if error and not isinstance(error, BrokenExecutor))
        return next(told, len(jobs))

    try:
        for number in reversed(range(len(jobs))):
            tell()
            if number > first_failed():
                futures[number].cancel()
            elif futures[number].cancel():  # no other process has begun with it
                done: Future[Result] = Future()
                mine[number] = done
                try:
                    done.set_result(function(*jobs[number]))
                except Exception as error:  # an earlier job may raise another one
                    done.set_exception(error)
        for number, future in enumerate(futures):
            try:
                found.append(mine.get(number, future).result())
            except BrokenExecutor:
                found.append(function(*jobs[number]))
            tell()
    except BaseException:
        for future in futures:
            future.cancel()
        for number in range(len(found), len(jobs)):
            done = mine.get(number, futures[number])
            if not done.done() or done.cancelled() or done.exception():
                break
            found.append(done.result())
        raise
    return found
