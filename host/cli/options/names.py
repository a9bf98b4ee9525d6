"""Options whose values are names, to which other packages may add."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from click.shell_completion import CompletionItem

NO_HINTS: Mapping[str, str] = MappingProxyType({})


class Names(click.ParamType):  # type: ignore[type-arg]
    """A name out of a list that is made when it is needed; click's own choice has a fixed one.

    Parameters
    ----------
    names : callable
        Returns the list.
    checks : bool
        Whether other words are refused here. If false, they are by what takes the value, which may
        say more about them.
    hints : mapping of str to str
        What the error for a word says besides the names.
    """

    name = "choice"

    def __init__(
        self,
        names: Callable[[], Sequence[str]],
        *,
        checks: bool = True,
        hints: Mapping[str, str] = NO_HINTS,
    ) -> None:
        self._names, self._checks, self._hints = names, checks, hints

    @property
    def _choice(self) -> click.Choice[str]:
        return click.Choice(self._names())

    def get_metavar(self, *args: Any, **kwargs: Any) -> str | None:
        """The names, for help; releases of click give other arguments."""
        return self._choice.get_metavar(*args, **kwargs)

    def get_missing_message(self, *args: Any, **kwargs: Any) -> str:
        """The end of the message about a value that is not given."""
        return self._choice.get_missing_message(*args, **kwargs)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Check a value."""
        if not self._checks:
            return value
        try:
            return self._choice.convert(value, param, ctx)
        except click.BadParameter as error:
            if hint := self._hints.get(value.lower()):
                vars(error)["message"] = f"{error.message.removesuffix('.')}; {hint}."
            raise

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Names that begin with the typed text."""
        return self._choice.shell_complete(ctx, param, incomplete)
