"""Runs of the cycle model, as plain Python or as machine code.

Machine code is used where numba is installed and the process has simulated enough for it to be
worth the time to load it. The results are equal in every bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from fpgapipe.hw.hls_models.cycles.bus_cycles import NEVER
from fpgapipe.hw.hls_models.cycles.cycle_tables import State
from fpgapipe.hw.hls_models.cycles.event_loop import follow_events
from fpgapipe.hw.hls_models.cycles.run_tables import Run, Tables
from fpgapipe.two_speeds import digest, has_compiler, machine_code

COMPILED_FROM = 5_000
"""Number of instructions that a process simulates from which machine code is worth the time to load
it, or to compile it once."""

ROOM = {"events": 1 << 6, "flows": 1 << 8}
"""Room for each device's events and flows. A run that needs more begins again with more."""

_simulated = [0]
"""Number of instructions that this process has simulated."""


def simulate(runs: Sequence[Run], window: float = NEVER) -> None:
    """Run until there are no more events.

    Parameters
    ----------
    runs : sequence of Run
        The runs, which take the results.
    window : float
        Number of cycles by which a run may be ahead of another.

    Raises
    ------
    ValueError
        If a program needs an engine that its core does not have.
    """
    _simulated[0] += sum(len(run.program) for run in runs)
    compiles = _simulated[0] >= COMPILED_FROM and has_compiler()
    tables = Tables(runs)
    while True:
        try:
            tables.finish(_followed(tables, window, compiles=compiles))
            return
        except MemoryError as error:
            table = str(error)
            if table not in ROOM:
                raise
            ROOM[table] *= 4


def _followed(tables: Tables, window: float, *, compiles: bool) -> State:
    """Return the tables after the last event."""
    if compiles:
        state = tables.state(ROOM["events"], ROOM["flows"], digest(follow_events))
        machine_code(follow_events)(state, window)
    else:
        state = tables.state(ROOM["events"], ROOM["flows"]).plain()
        follow_events(state, window)
    return state
