"""Several processes that do the work of one command: ``mpirun -n 4 fpgapipe run``.

Rank 0 does what one process does alone; it has the command line, all files, and the driver of all
devices. The other ranks `serve` it: they simulate their devices whenever rank 0 does, read and
write their memories, and do jobs that rank 0 shares out (`fpgapipe.jobs`).
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import signal
import stat
import sys
import termios
import threading
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fpgapipe.errors import UserError
from fpgapipe.garbage import rare_collections
from fpgapipe.host.terminal.interrupts import ENDINGS, kept
from fpgapipe.jobs import sharing
from fpgapipe.optional import require
from fpgapipe.sim_tb.cluster.rank_messages import hear, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from fpgapipe.jobs import Pool
    from fpgapipe.sim_tb.cluster.ranks import RankedCluster

Result = TypeVar("Result")

SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
"""Variables in which launchers of MPI say how many processes they have started."""

EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130

PATIENCE_S = 5.0
"""Seconds after an interrupt in which ranks may end the jobs that they have begun."""

LAUNCHER_S = 5.0
"""Seconds in which a launcher finds that a process has died, and ends the others."""

PASSING_ON_S = 0.1
"""Seconds in which a launcher writes on what it has read of a process's output."""

PAUSE_S = 0.005
"""Longest pause between two looks for a job or a result, seconds."""


def are_several() -> bool:
    """Whether a launcher of MPI has started several processes, of which this is one."""
    return any(os.environ.get(name, "").isdigit() and int(os.environ[name]) > 1 for name in SIZES)


def communicator() -> Any:
    """The communicator of all ranks (``mpi4py.MPI.COMM_WORLD``); None if there is one process.

    mpi4py is imported only if a launcher has started this process.

    Raises
    ------
    UserError
        If there are several processes and mpi4py is not installed.
    """
    if not are_several():
        return None
    require("mpi4py", "a command of several processes")
    world = importlib.import_module("mpi4py.MPI").COMM_WORLD
    return world if world.size > 1 else None


def on_all_ranks(command: Callable[[], int]) -> int:
    """Run a command on rank 0, while the other ranks serve it; returns its exit code.

    If the command ends with `EXIT_INTERNAL`, all ranks end at once: they may be at different
    places, so nothing more can be agreed on.

    Raises
    ------
    UserError
        If mpi4py is not installed.
    """
    comm = communicator()
    if comm is None:
        return command()
    if comm.rank:
        serve(comm)
        return 0
    with sharing(partial(_pool, comm)):
        code = command()
    if code == EXIT_INTERNAL:
        _end_all(comm, code)
    tell(comm, "end")
    return code


def serve(comm: Any) -> None:
    """Do what rank 0 tells this rank, to the end of its command."""
    from fpgapipe.host.transports.shared_cluster import ranked_cluster

    # Rank 0 says when to stop; a launcher sends signals to all.
    _on_signals(signal.SIG_IGN)
    cluster: RankedCluster | None = None
    try:
        while True:
            name, arguments = hear(comm)
            if name == "end":
                return
            if name == "jobs":
                with rare_collections(), _executor(comm):
                    continue
            # Errors of this kind are raised on all ranks alike, and rank 0 reports them.
            with contextlib.suppress(UserError):
                if name == "create":
                    cluster = ranked_cluster(comm, *arguments)
                else:
                    getattr(cluster, name)(*arguments)
    except BaseException as error:
        let_launcher_end(error)
        print(f"rank {comm.rank} has failed:", file=sys.stderr)
        traceback.print_exc()
        _end_all(comm, EXIT_INTERNAL)
        raise


def let_launcher_end(error: BaseException) -> None:
    """Wait for the launcher to end this process, if an error is one of MPI itself.

    Such an error mostly means that another process has died while it sent a message to this one.
    The launcher says which process that was. If this process ended itself first, its own error
    would be all that is said.
    """
    if type(error).__module__.partition(".")[0] == "mpi4py":
        time.sleep(LAUNCHER_S)


def _executor(comm: Any) -> Any:
    """Executor of the jobs; on other ranks than 0 its context does jobs until rank 0 leaves it."""
    futures = importlib.import_module("mpi4py.futures")
    return futures.MPICommExecutor(comm, root=0, backoff=PAUSE_S)


@contextlib.contextmanager
def _pool(comm: Any) -> Iterator[Pool]:
    """The other ranks, as processes that do jobs.

    Ctrl-C is kept while they come and go: else they would wait for a rank 0 that is elsewhere.
    """
    late = threading.Timer(PATIENCE_S, partial(_abandon, comm))
    late.daemon = True

    def waits_no_longer() -> None:
        if late.ident is None:
            late.start()

    executor = _executor(comm)
    try:
        with kept():
            tell(comm, "jobs")
            pool = executor.__enter__()
        try:
            yield _Ranks(pool)
        except KeyboardInterrupt:
            waits_no_longer()
            raise
    finally:
        with kept(waits_no_longer):
            executor.__exit__(None, None, None)
        late.cancel()


def _abandon(comm: Any) -> None:
    print("interrupted", file=sys.stderr)
    _end_all(comm, EXIT_INTERRUPTED)


def _end_all(comm: Any, code: int) -> None:
    """End all ranks, once the launcher has passed on what this one has printed.

    A launcher that hears of the end before it has read a rank's output throws the output away
    (MPICH's agent does, if it was busy), and with it the reason of the end.
    """
    last_s = time.monotonic() + LAUNCHER_S
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
            while _unread_bytes(stream.fileno()) and time.monotonic() < last_s:
                time.sleep(PAUSE_S)
    time.sleep(PASSING_ON_S)
    comm.Abort(code)


def _unread_bytes(descriptor: int) -> int:
    """Bytes that were written to a pipe and that nobody has read; 0 of anything but a pipe."""
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return 0
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


class _Ranks:
    """The executor of the jobs, which can be interrupted on their ranks."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor

    def submit(self, function: Callable[..., Result], /, *arguments: Any) -> Future[Result]:
        """See `Pool`."""
        found: Future[Result] = self._executor.submit(_do, function, *arguments)
        return found


def _do(function: Callable[..., Result], *arguments: Any) -> Result:
    """Do a job on another rank than 0; Ctrl-C, which a launcher sends to all, ends it."""
    world = importlib.import_module("mpi4py.MPI").COMM_WORLD
    _on_signals(signal.default_int_handler)
    try:
        return function(*arguments)
    except Exception as error:
        error.add_note(f"on process {world.rank} of {world.size}, host {os.uname().nodename}")
        raise
    finally:
        _on_signals(signal.SIG_IGN)


def _on_signals(handler: Any) -> None:
    for number in (signal.SIGINT, *ENDINGS):
        signal.signal(number, handler)
