"""Runs a compiled design inside this Python; `simulate` starts it as a process of its own.

cocotb's own flow starts the simulator, which then loads Python's shared library. The Python of
Debian and Ubuntu comes without that library, so here it is the other way round: Python loads the
simulator. cocotb's entry point finds an interpreter that runs already and uses it.
"""

import contextlib
import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2)


def end_with_parent() -> None:
    """Let the kernel end this process when the one that started it is killed.

    A simulator that nobody waits for would write its results among those of a later run.
    """
    with contextlib.suppress(AttributeError):  # no Linux
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(library: str, *arguments: str) -> None:
    """Run the simulator's main program; it ends the process.

    Parameters
    ----------
    library : str
        The shared library that :func:`fpgapipe.sim_tb.native.verilate.build` made.
    *arguments : str
        Those of cocotb's main program for Verilator (``--trace``, ``--trace-file FILE``).
    """
    end_with_parent()
    words = [library, *arguments]
    argv = (ctypes.c_char_p * (len(words) + 1))(*(word.encode() for word in words), None)
    # Global, since cocotb's libraries look for the simulator's symbols; PyDLL, since cocotb expects
    # to hold Python's lock when it begins.
    simulator = ctypes.PyDLL(library, mode=ctypes.RTLD_GLOBAL)
    simulator.fpgapipe_run(len(words), argv)


if __name__ == "__main__":
    main(*sys.argv[1:])
