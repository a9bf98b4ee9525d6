"""Jobs that do not depend on each other: done by this process, or shared out among several.

A search calls `results` and does not know which processes there are. A command says so with
`sharing`: local processes (`local_processes`), or the ranks of MPI
(`fpgapipe.host.backends.ranks`). The results, and the error if there is one, are the same in
any case.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fpgapipe.garbage import collect_rarely

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    Pools = Callable[[], AbstractContextManager["Pool"]]

Result = TypeVar("Result")


class Pool(Protocol):
    """Other processes that do jobs; an executor of `concurrent.futures` is one."""

    def submit(self, function: Callable[..., Result], /, *arguments: Any) -> Future[Result]:
        """Let another process call a function; whatever travels must be fit for pickle."""


_pools: ContextVar[Pools | None] = ContextVar("pools", default=None)


@contextlib.contextmanager
def sharing(pools: Pools) -> Iterator[None]:
    """Share jobs within this context.

    Parameters
    ----------
    pools : callable
        Opens the other processes; it is called whenever there are several jobs.
    """
    before = _pools.set(pools)
    try:
        yield
    finally:
        _pools.reset(before)


@contextlib.contextmanager
def local_processes(count: int) -> Iterator[Pool]:
    """Open some processes besides this one, which end with the context."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=spawn, initializer=collect_rarely) as pool:
        yield pool


def results(
    function: Callable[..., Result],
    jobs: Sequence[tuple[Any, ...]],
    on_step: Callable[[int, int], object] = lambda done, total: None,
    kept: list[Result] | None = None,
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

    Returns
    -------
    list
        What the calls return, in the order of `jobs`.

    Raises
    ------
    BaseException
        What the first call in this order raises, whichever call has ended first.
    """
    pools = _pools.get()
    found: list[Result] = [] if kept is None else kept
    if pools is None or len(jobs) < 2:
        for number, job in enumerate(jobs):
            on_step(number, len(jobs))
            found.append(function(*job))
        on_step(len(jobs), len(jobs))
        return found
    before = _pools.set(None)
    try:
        with pools() as pool:
            return _shared(pool, function, jobs, on_step, found)
    finally:
        _pools.reset(before)


def _shared(
    pool: Pool,
    function: Callable[..., Result],
    jobs: Sequence[tuple[Any, ...]],
    on_step: Callable[[int, int], object],
    found: list[Result],
) -> list[Result]:
    """Do jobs from the last one on while other processes do them from the first one on."""
    from concurrent.futures import Future

    futures = [pool.submit(function, *job) for job in jobs]
    mine: dict[int, Future[Result]] = {}

    def tell() -> None:
        others = sum(each.done() and not each.cancelled() for each in futures)
        on_step(len(mine) + others, len(jobs))

    def first_failed() -> int:
        """Number of the first job of which another process has told an error."""
        ended = (n for n, each in enumerate(futures) if each.done() and not each.cancelled())
        return next((n for n in ended if futures[n].exception()), len(jobs))

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
            found.append(mine.get(number, future).result())
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
