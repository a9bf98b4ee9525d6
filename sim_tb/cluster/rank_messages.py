"""What rank 0 tells the other ranks to do next."""

from __future__ import annotations

import time
from typing import Any

LONGEST_PAUSE_S = 0.002
"""Longest pause between two looks for a message, in which a rank leaves its processor to others."""


def tell(comm: Any, name: str, arguments: Any = ()) -> None:
    """Tell all other ranks what to do, from rank 0; they `hear` it."""
    comm.Ibarrier().Wait()
    comm.bcast((name, arguments))


def hear(comm: Any) -> tuple[str, Any]:
    """Wait for what rank 0 tells; a name and arguments.

    MPI itself would wait in a loop that leaves no time to ranks at work.
    """
    begins, pause_s = comm.Ibarrier(), 1e-5
    while not begins.Test():
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    name, arguments = comm.bcast(None)
    return name, arguments
