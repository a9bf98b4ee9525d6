"""Runs of the cycle model as machine code, where numba is installed and a program is long enough.

`CoreRun` and its engines are the definition, and what runs without numba. Here what instructions
take for themselves is found once for each body and put into tables
(:mod:`fpgapipe.hw.hls_models.cycles.compiled_tables`), which a loop follows
(:mod:`fpgapipe.hw.hls_models.cycles.compiled_loop`); no bit of the result differs. Whatever is out
of the ordinary is left to the definition, and fails as it does there.
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
"""Programs of fewer instructions are not worth making tables."""

LOADED_FROM = 50_000
"""Instructions to be simulated by a process from which machine code is worth the time to load it,
or to make it once."""

EVENTS, FLOWS = 1 << 10, 1 << 12
"""Room for each device in the first place; where it is not enough, runs begin anew with more."""


@cache
def _digest(*modules: ModuleType) -> str:
    """Digest of sources.

    A change in one has to make machine code of all anew: for numba's cache only the file of the
    outermost function counts, and the types of its arguments, of which this becomes a part.
    """
    return f"{zlib.crc32(''.join(map(inspect.getsource, modules)).encode()):08x}"


@cache
def has_compiler() -> bool:
    """Whether numba is installed."""
    return importlib.util.find_spec("numba") is not None


_simulated = [0]
"""Instructions of programs that are not short, which this process has simulated."""


def run_compiled(
    runs: Sequence[Run],
    numbers: Mapping[str, int],
    *,
    ports: Sequence[Sequence[Port]] = (),
    peers: Mapping[int, int] | None = None,
    window: float = inf,
    held: Held | None = None,
) -> bool:
    """Let runs go on until nothing happens any more.

    Parameters
    ----------
    runs : sequence of Run
        Which have not begun; they are changed.
    numbers : mapping of str to int
        Cycles that the modules of the runs define, by their names in `compiled_tables.WHOLE`.
    ports : sequence of sequence of Port
        The ends of each run's links, where links join cores.
    peers : mapping of int to int, optional
        Numbers of the ends that are joined, in either direction; all ends are counted.
    window : float
        Cycles by which a run may be ahead of another.
    held : Held, optional
        When RECEIVEs end, if a run lets nothing come before it needs it.

    Returns
    -------
    bool
        False if the runs are left to Python: nothing has happened then.
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
        return False  # what is wrong with an instruction shows when it starts
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
