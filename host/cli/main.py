"""The ``fpgapipe`` command: its group of sub-commands and its exit codes.

The sub-commands are in ``host/cli/commands/``. Their modules import only click at the top and all
else inside functions, since ``fpgapipe --help`` must be quick (tests/host/test_cli.py checks this).
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
from fpgapipe.errors import UserError, nearest
from fpgapipe.garbage import end_after_command
from fpgapipe.host.backends.ranks import are_several, let_launcher_end, on_all_ranks
from fpgapipe.host.cli.commands.agent import agent
from fpgapipe.host.cli.commands.bench import bench
from fpgapipe.host.cli.commands.boards import boards
from fpgapipe.host.cli.commands.bringup import bringup
from fpgapipe.host.cli.commands.build import build
from fpgapipe.host.cli.commands.cluster import cluster
from fpgapipe.host.cli.commands.compare import compare
from fpgapipe.host.cli.commands.doctor import doctor
from fpgapipe.host.cli.commands.inspect import inspect
from fpgapipe.host.cli.commands.new import new
from fpgapipe.host.cli.commands.oracle import oracle
from fpgapipe.host.cli.commands.plan import plan
from fpgapipe.host.cli.commands.report import report
from fpgapipe.host.cli.commands.ring import ring
from fpgapipe.host.cli.commands.run import run
from fpgapipe.host.cli.commands.schedule import schedule
from fpgapipe.host.cli.options.completion import completion
from fpgapipe.host.cli.options.options import discard_output, verbosity_options
from fpgapipe.host.terminal.interrupts import terminations
from fpgapipe.sim_tb.substitutes.simulation import OF_COMMANDS, VARIABLE

EXIT_USER = 2
EXIT_INTERNAL = 70  # EX_SOFTWARE of sysexits.h
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk, which the user can mend, whichever file did not fit."""


class Commands(click.Group):
    """A group that suggests the nearest sub-command to a misspelt one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the sub-command as click does; the error for an unknown one names the nearest."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(
                f"no command {args[0]!r}{nearest(args[0], self.list_commands(ctx))}", ctx
            )
        return super().resolve_command(ctx, args)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: fpgapipe inspect resnet50 --batch 8",
)
@click.version_option(__version__, prog_name="fpgapipe")
@verbosity_options
def cli() -> None:
    """Plan, generate and simulate training pipelines over several FPGAs."""
    os.environ.setdefault(VARIABLE, OF_COMMANDS)


for command in (
    agent,
    bench,
    boards,
    bringup,
    build,
    cluster,
    compare,
    completion,
    doctor,
    inspect,
    new,
    oracle,
    plan,
    report,
    ring,
    run,
    schedule,
):
    cli.add_command(command)


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
    with terminations() as come:
        code = _on_ranks(argv, come) if are_several() else _main(argv, come)
    return 128 + come[0] if come and code == EXIT_INTERRUPTED else code


def _on_ranks(argv: Sequence[str] | None, come: Sequence[int]) -> int:
    try:
        return on_all_ranks(lambda: _main(argv, come))
    except UserError as error:
        click.echo(f"error: {error}", err=True)
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
        click.echo(f"error: {error}", err=True)
        return EXIT_USER
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        warnings.simplefilter("ignore")  # Amaranth warns of gateware that is never elaborated
        _say("interrupted")
        return EXIT_INTERRUPTED
    except Exception as error:
        if come and isinstance(error, OSError) and error.errno == errno.EIO:
            return EXIT_INTERRUPTED  # the terminal was closed and cannot be written to
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            where = "" if error.filename is None else f" {error.filename}"
            click.echo(f"error: writing{where} failed: {error.strerror}", err=True)
            discard_output()
            return EXIT_USER
        let_launcher_end(error)
        click.echo(traceback.format_exc(), err=True)
        click.echo(
            f"This is a defect of fpgapipe {__version__}. Please report it with the lines above, "
            "the command, and what 'fpgapipe doctor' prints (CONTRIBUTING.md, 'Report a defect').",
            err=True,
        )
        return EXIT_INTERNAL


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
