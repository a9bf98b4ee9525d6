"""The commands of the command line."""

import click

from fpgapipe.host.cli.main import cli


def commands_of(group=cli):
    """The sub-commands of a group by name, all of them imported."""
    context = click.Context(group)
    return {name: group.get_command(context, name) for name in group.list_commands(context)}
