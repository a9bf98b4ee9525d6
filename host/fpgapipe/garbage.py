"""Fewer garbage collections while millions of long-lived objects are made."""

import contextlib
import gc
from collections.abc import Iterator

_process = {"ends": False}


def end_after_command() -> None:
    """Say that this process ends after its command, so its garbage need not be collected."""
    _process["ends"] = True


def collect_rarely() -> None:
    """Collect garbage seldom from now on; see `rare_collections`."""
    gc.set_threshold(1_000_000, 20, 100)


@contextlib.contextmanager
def rare_collections(*, last: bool = False) -> Iterator[None]:
    """Collect garbage seldom.

    With Python's defaults, collections take a third of the time; with this threshold, a fiftieth.
    Without any collection, more memory may be needed: the threshold bounds how many objects can
    wait for one.

    Parameters
    ----------
    last : bool
        Whether a process that ends after its command does nothing else of size afterwards: what is
        there at the end is then not collected, but left to the operating system.
    """
    before = gc.get_threshold()
    collect_rarely()
    try:
        yield
    finally:
        if last and _process["ends"]:
            gc.freeze()
        gc.set_threshold(*before)
