"""The ``fpgapipe`` command: its group of sub-commands and its exit codes.

The sub-commands are in ``host/cli/commands/``; each is imported when it is called, since
``fpgapipe --help`` must be quick (tests/host/test_cli.py checks this).
"""

import contextlib
import errno
import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

import click

from fpgapipe import __version__
from fpgapipe.errors import UserError
from fpgapipe.garbage import end_after_command
from fpgapipe.host.backends.ranks import are_several, let_launcher_end, on_all_ranks
from fpgapipe.host.cli.lazy_group import LazyGroup
from fpgapipe.host.cli.options.options import discard_output, verbosity_options
from fpgapipe.host.terminal.escapes import escaping, in_one_line
from fpgapipe.host.terminal.interrupts import terminations
from fpgapipe.plugins import blamed
from fpgapipe.sim_tb.substitutes.simulation import OF_COMMANDS, VARIABLE

EXIT_USER = 2
EXIT_INTERNAL = 70  # EX_SOFTWARE of sysexits.h
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk, which the user can mend, whichever file did not fit."""


COMMANDS = {
    "agent": "Serve the devices of this host to other hosts, until Ctrl-C.",
    "bench": "Measure the simulated hardware, and check it against its model.",
    "boards": "List the boards, or show one in full with the source of its numbers.",
    "bringup": "Check the devices of the build in DIR, one step after the other.",
    "build": "Plan a network for the boards and make their hardware and programs.",
    "cluster": "Show the devices and links of a cluster.",
    "compare": "Compare one device, data parallel, an even split and pipeline schedules for "
    "NETWORK.",
    "completion": "Print a script that lets SHELL complete fpgapipe's commands, options and names.",
    "doctor": "List what is needed, what was found, and the line that mends what is not right.",
    "export": "Write the weights of a run for the module that its network came from.",
    "explore": "Show what cores for NETWORK give and take on a board: throughput against area.",
    "generate": "Continue a text, or a row of tokens, by a network that predicts the token behind "
    "each.",
    "inspect": "Print the layers of NETWORK: shapes, MACs, parameters, features, totals.",
    "new": "Write a commented file to begin with, which passes its own check, into this folder.",
    "oracle": "Foretell time, memory and limits of parallel strategies over numbers of devices.",
    "plan": "Search schedules, micro-batch sizes, array shapes and cuts for the fastest that fits.",
    "predict": "Say the classes of samples, with probabilities and names of files.",
    "profile": "Measure in PyTorch how long the parts of NETWORK take on this machine.",
    "report": "Write a page about the build in DIR: plan, resources, cycles, training.",
    "ring": "Train several models in a ring: each device keeps its part of the samples, models "
    "travel.",
    "run": "Train on the build in DIR, or run its inference, and keep what comes of it in DIR/run.",
    "schedule": "Draw the timetable of a schedule, or of a file, for equal stages; print what it "
    "comes to.",
}
"""The first sentence of each command's help, for the list of the commands."""

IN_MODULE = {
    "cluster": "boards",
    "explore": "compare",
    "profile": "plan",
    **dict.fromkeys(("export", "generate", "predict"), "trained"),
}
"""Modules of commands that are not in one of their own name."""


@click.group(
    cls=LazyGroup,
    lazy={name: (IN_MODULE.get(name, name), line) for name, line in COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: fpgapipe inspect resnet50 --batch 8",
)
@click.version_option(__version__, prog_name="fpgapipe")
@verbosity_options
def cli() -> None:
    """Plan, generate and simulate training pipelines over several FPGAs."""
    os.environ.setdefault(VARIABLE, OF_COMMANDS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code.

    The codes are 0 for success, 1 if a check has found a fault (as ``doctor`` does), 2 for an error
    that the user can mend, 70 for a defect of fpgapipe, 75 if a run has stopped at the end of its
    time (``run --time-budget``), 130 if interrupted, and 143, 129 or 138 if ended by SIGTERM,
    SIGHUP or SIGUSR1. Of several processes of MPI, the first one runs the command line, and the
    others help it.
    """
    _prepare_streams()
    if argv is None:
        end_after_command()
    come: list[int] = []
    try:
        with escaping(), terminations(come):
            code = _on_ranks(argv, come) if are_several() else _main(argv, come)
    except KeyboardInterrupt:  # a signal before the command, or behind it
        code = _interrupted()
    return 128 + come[0] if come and code == EXIT_INTERRUPTED else code


def _on_ranks(argv: Sequence[str] | None, come: Sequence[int]) -> int:
    try:
        return on_all_ranks(lambda: _main(argv, come))
    except UserError as error:
        _refuse(error, argv)
        return EXIT_USER


def _main(argv: Sequence[str] | None, come: Sequence[int]) -> int:
    try:
        result = cli.main(
            args=list(argv) if argv is not None else None,
            prog_name="fpgapipe",
            standalone_mode=False,
        )
        return result if isinstance(result, int) else 0
    except UserError as error:
        _refuse(error, argv)
        return EXIT_USER
    except click.ClickException as error:
        vars(error)["message"] = in_one_line(error.message, _words(argv))
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _interrupted()
    except Exception as error:
        # A closed terminal cannot be written to, and pydantic makes an error of its own of Ctrl-C.
        if (come and isinstance(error, OSError) and error.errno == errno.EIO) or (
            isinstance(error, ValueError) and "KeyboardInterrupt" in str(error)
        ):
            return _interrupted()
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            where = "" if error.filename is None else f" {error.filename}"
            click.echo(f"error: writing{where} failed: {error.strerror}", err=True)
            discard_output()
            return EXIT_USER
        if broken := blamed(error):
            _refuse(broken, argv)
            return EXIT_USER
        let_launcher_end(error)
        click.echo(traceback.format_exc(), err=True)
        click.echo(
            f"This is a defect of fpgapipe {__version__}. Please report it with the lines above, "
            "the command, and what 'fpgapipe doctor' prints (CONTRIBUTING.md, 'Report a defect').",
            err=True,
        )
        return EXIT_INTERNAL


def _interrupted() -> int:
    """Say that the user has ended the command; returns the exit code."""
    warnings.simplefilter("ignore")  # Amaranth warns of gateware that is never elaborated
    _say("interrupted")
    return EXIT_INTERRUPTED


def _refuse(error: UserError, argv: Sequence[str] | None) -> None:
    """Print an error, in which the user's words cannot look like further lines."""
    click.echo(f"error: {in_one_line(str(error), _words(argv))}", err=True)


def _words(argv: Sequence[str] | None) -> list[str]:
    """The user's own words, which messages quote: arguments, and the folder."""
    words = list(sys.argv[1:] if argv is None else argv)
    with contextlib.suppress(OSError):
        words.append(str(Path.cwd()))
    return words


def _say(text: str) -> None:
    """Print a line to standard error, if that is still open."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def _prepare_streams() -> None:
    """Make standard output and error accept any text, even if they are closed or ASCII only."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 (kept to the end)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
