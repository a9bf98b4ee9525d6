"""Results of commands: printed as tables and lines, or turned into records and JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from fpgapipe.host.terminal.console import Table, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

ENDED = "the search was ended before all was tried"
"""Message of a result that the user did not wait for."""


class Result(ABC):
    """Result of a command; ``print(result)`` shows the text that the command prints.

    Attributes
    ----------
    RECORDS : str
        Key of `to_dict` whose list `to_records` gives; without one, the whole is one record.
    """

    RECORDS: ClassVar[str] = ""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Values for JSON, as ``--json`` prints them."""

    @abstractmethod
    def shown(self) -> Iterator[Table | str]:
        """Tables and lines in the order in which they are printed; an empty line is a line."""

    def to_records(self) -> list[dict[str, Any]]:
        """Rows of equal keys, such as ``pandas.DataFrame`` takes."""
        value = self.to_dict()
        records: list[dict[str, Any]] = value[self.RECORDS] if self.RECORDS else [value]
        return records

    def __str__(self) -> str:
        return "\n".join(map(str, self.shown()))


def show(result: Result, *, as_json: bool = False) -> None:
    """Print a result, as tables and lines or as one JSON object."""
    if as_json:
        print_json(result.to_dict())
        return
    for part in result.shown():
        if isinstance(part, Table):
            part.print()
        else:
            print(part)
