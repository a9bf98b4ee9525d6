"""``fpgapipe completion``: lets a shell complete commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

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
    found = get_completion_class(shell)
    assert found is not None, "click knows the shells that the argument takes"
    root = click.get_current_context().find_root().command
    print(found(root, {}, "fpgapipe", VARIABLE).source())
