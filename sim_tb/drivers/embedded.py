"""Runs a compiled design inside this Python process, which `simulate` starts for it.

cocotb's own flow starts the simulator, which then loads Python's shared library. The Python of
Debian and Ubuntu comes without that library. Therefore Python loads the simulator here, and
cocotb's entry point uses the interpreter that is already running.
"""

import contextlib
import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2)


def end_with_parent() -> None:
    """Let the kernel end this process when its parent process is killed.

    Otherwise a simulator that is left over could write its results among those of a later run.
    """
    with contextlib.suppress(AttributeError):  # not on Linux
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(library: str, *arguments: str) -> None:
    """Run the simulator's main program, which ends the process.

    Parameters
    ----------
    library : str
        Shared library that :func:`fpgapipe.sim_tb.native.verilate.build` returned.
    *arguments : str
        Arguments for cocotb's main program for Verilator (``--trace``, ``--trace-file FILE``).
    """
    end_with_parent()
    words = [library, *arguments]
    argv = (ctypes.c_char_p * (len(words) + 1))(*(word.encode() for word in words), None)
    # RTLD_GLOBAL, since cocotb's libraries need the simulator's symbols; PyDLL, since cocotb
    # expects to hold Python's lock when it starts.
    simulator = ctypes.PyDLL(library, mode=ctypes.RTLD_GLOBAL)
    simulator.fpgapipe_run(len(words), argv)


if __name__ == "__main__":
    main(*sys.argv[1:])
