"""A group of commands whose modules are imported when they are called."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click

from fpgapipe.host.cli.options.suggestions import meant_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from click.shell_completion import CompletionItem

COMMANDS = "fpgapipe.host.cli.commands"


class LazyGroup(click.Group):
    """A group that imports a sub-command when it is called, and suggests one for a misspelt name.

    Lists of the sub-commands, in its help and of a shell, have the lines that are given here, so
    that they take no imports. Source: "Lazily Loading Subcommands" of click's documentation.

    Parameters
    ----------
    lazy : mapping of str to (str, str)
        For each sub-command, the name of its module in ``host/cli/commands``, which has the command
        under the same name, and the line that lists say of it.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all sub-commands."""
        return sorted({*self.commands, *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a sub-command, imported if it was not yet; None if there is none."""
        if cmd_name in self._lazy and cmd_name not in self.commands:
            module = importlib.import_module(f"{COMMANDS}.{self._lazy[cmd_name][0]}")
            self.add_command(getattr(module, cmd_name))
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the sub-command as click does; the error for an unknown one names the nearest."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(
                f"no command {args[0]!r}{meant_command(args[0], self.list_commands(ctx))}", ctx
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of the sub-commands into the help."""
        self._listed.format_commands(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of sub-commands and options that begin with the typed text."""
        listed = self._listed
        names = ctx.help_option_names
        return listed.shell_complete(click.Context(listed, help_option_names=names), incomplete)

    @property
    def _listed(self) -> click.Group:
        """A group of the same names and lines that does nothing."""
        lines = {name: click.Command(name, help=line) for name, (_, line) in self._lazy.items()}
        return click.Group(self.name, {**lines, **self.commands}, params=self.params)
