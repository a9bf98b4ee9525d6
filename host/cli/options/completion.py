"""``fpgapipe completion``: lets a shell complete commands, options and names."""

from __future__ import annotations

import click

from fpgapipe.host.cli.options.options import command

VARIABLE = "_FPGAPIPE_COMPLETE"
"""Environment variable with which the shell asks for completions."""


@command("completion", example="fpgapipe completion bash")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that lets SHELL complete fpgapipe's commands, options and names.

    For bash put this line into ~/.bashrc, for zsh into ~/.zshrc with zsh instead of bash:

        eval "$(fpgapipe completion bash)"

    For fish write it to ~/.config/fish/completions/fpgapipe.fish.
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None, "click knows the shells that the argument takes"
    root = click.get_current_context().find_root().command
    print(found(root, {}, "fpgapipe", VARIABLE).source())


def boards_that_begin(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of built-in boards that begin with the typed text."""
    from importlib.resources import files

    names = (entry.name for entry in files("fpgapipe.boards").iterdir())
    stems = (name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))
    return sorted(stem for stem in stems if stem.startswith(incomplete))


def networks_that_begin(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of built-in networks that begin with the typed text."""
    from fpgapipe.network.zoo import NETWORKS

    return sorted(name for name in NETWORKS if name.startswith(incomplete))
