"""Runs of the cycle model as machine code, if numba is installed and the programs are long enough.

`CoreRun` and its engines define the model, and run without numba. Here, the times that instructions
take on their own are computed once for each body and put into tables
(:mod:`fpgapipe.hw.hls_models.cycles.compiled_tables`). A loop in machine code
(:mod:`fpgapipe.hw.hls_models.cycles.compiled_loop`) simulates the rest; the results are equal in
every bit. A run with an error or an unknown engine is left to `CoreRun`, which reports the error.
"""

from __future__ import annotations

import importlib.util
import inspect
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from math import inf
from types import ModuleType

from fpgapipe.hw.hls_models.cycles.compiled_tables import Held, Port, Run, Tables
from fpgapipe.hw.hls_models.cycles.engine_cycles import Kind

FEW = 100
"""Number of instructions from which programs are worth building tables."""

LOADED_FROM = 20_000
"""Number of instructions that a process simulates from which machine code is worth the time to load
it, or to compile it once."""

EVENTS, FLOWS = 1 << 10, 1 << 12
"""Initial room for each device's events and flows; a run that needs more begins again with more."""


@cache
def _digest(*modules: ModuleType) -> str:
    """Return a digest of the modules' sources.

    A change in any of them must compile all machine code again. But numba's cache only checks the
    file of the outermost function and the types of its arguments, so the digest becomes a part of
    such a type.
    """
    return f"{zlib.crc32(''.join(map(inspect.getsource, modules)).encode()):08x}"


@cache
def has_compiler() -> bool:
    """Whether numba is installed."""
    return importlib.util.find_spec("numba") is not None


_simulated = [0]
"""Number of instructions that this process has simulated, without those of short programs."""


def run_compiled(
    runs: Sequence[Run],
    numbers: Mapping[str, int],
    *,
    ports: Sequence[Sequence[Port]] = (),
    peers: Mapping[int, int] | None = None,
    window: float = inf,
    held: Held | None = None,
) -> bool:
    """Run the simulation in machine code until there are no more events.

    Parameters
    ----------
    runs : sequence of Run
        The runs, which have not begun. They are changed.
    numbers : mapping of str to int
        Constants of the runs' modules in cycles, by their names in `compiled_tables.WHOLE`.
    ports : sequence of sequence of Port
        For each run, the ends of its links, if links join the cores.
    peers : mapping of int to int, optional
        For each end that is joined, the number of the other end. The ends of all runs are numbered
        together.
    window : float
        Number of cycles by which a run may be ahead of another.
    held : Held, optional
        Tasks of the instructions, if RECEIVEs end only when the run cannot go on without them.

    Returns
    -------
    bool
        Whether the runs were simulated. If not, they are unchanged and left to Python.
    """
    count = sum(len(run.program) for run in runs)
    if count < FEW:
        return False
    _simulated[0] += count
    if _simulated[0] < LOADED_FROM or any(run.number for run in runs) or not has_compiler():
        return False
    kinds = {vars(type(each)).get("kind") for run in runs for each in run.engines.values()}
    unknown = {None} if ports else {None, Kind.LINK_SEND, Kind.LINK_RECEIVE}
    if kinds & (unknown if held else unknown | {Kind.HELD}):
        return False
    from fpgapipe.hw.hls_models.cycles import compiled_bus, compiled_loop

    try:
        tables = Tables(runs, numbers, ports or [()] * len(runs), peers or {}, held)
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
        return False  # the definition reports the error when the instruction starts
    events, flows = EVENTS, FLOWS
    digest = _digest(compiled_bus, compiled_loop)
    while True:
        state = compiled_bus.State(**tables.state(events, flows, digest))
        try:
            compiled_loop.simulate(state, window)
        except MemoryError as error:
            events, flows = (events * 4, flows) if "events" in str(error) else (events, flows * 4)
            continue
        break
    if state.whole[0]["failed"] >= 0:
        return False
    tables.finish(state)
    return True
