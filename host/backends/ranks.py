"""Several processes that simulate the devices of one run: ``mpirun -n 4 fpgapipe run``.

Rank 0 does what one process does alone; it has the command line, all files, and copies of all
memories. The other ranks simulate their devices whenever rank 0 does (`serve`).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any

from fpgapipe.errors import UserError
from fpgapipe.optional import require

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
"""Variables in which launchers of MPI say how many processes they have started."""

EXIT_INTERNAL = 70


def communicator() -> Any:
    """The communicator of all ranks (``mpi4py.MPI.COMM_WORLD``); None if there is one process.

    mpi4py is imported only if a launcher has started this process.

    Raises
    ------
    UserError
        If there are several processes and mpi4py is not installed.
    """
    if not any(os.environ.get(name, "").isdigit() and int(os.environ[name]) > 1 for name in SIZES):
        return None
    require("mpi4py", "a run of several processes")
    world = importlib.import_module("mpi4py.MPI").COMM_WORLD
    return world if world.size > 1 else None


@contextlib.contextmanager
def session(calm: type[Exception] = UserError) -> Iterator[bool]:
    """Let the other ranks serve rank 0 within this context; gives whether this is rank 0.

    On other ranks the context begins when rank 0 has ended its own. Exceptions other than
    `KeyboardInterrupt`, `UserError` and `calm` end all ranks at once.
    """
    comm = communicator()
    if comm is None:
        yield True
    elif comm.rank:
        serve(comm)
        yield False
    else:
        try:
            yield True
        except (UserError, KeyboardInterrupt, calm):
            comm.bcast(("end", ()))
            raise
        except BaseException:
            # The ranks may be at different places, so nothing more can be agreed on.
            traceback.print_exc()
            comm.Abort(EXIT_INTERNAL)
            raise
        comm.bcast(("end", ()))


def serve(comm: Any) -> None:
    """Simulate the devices of this rank as rank 0 says, to its end."""
    from fpgapipe.host.backends.ranked_devices import RankedDevices
    from fpgapipe.sim_tb.cluster.ranks import Interrupted

    # Rank 0 says when to stop; a launcher sends signals to all.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    devices: RankedDevices | None = None
    try:
        while True:
            name, arguments = comm.bcast(None)
            if name == "end":
                return
            # Errors of this kind are raised on all ranks alike, and rank 0 reports them.
            with contextlib.suppress(UserError, Interrupted):
                if name == "create":
                    devices = RankedDevices(comm, **arguments)
                else:
                    getattr(devices, name)(*arguments)
    except BaseException:
        print(f"rank {comm.rank} has failed:", file=sys.stderr)
        traceback.print_exc()
        comm.Abort(EXIT_INTERNAL)
        raise
