"""Tokens that a network has chosen, one behind the other, as text or as numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fpgapipe.host.data.data_tokens import text_of
from fpgapipe.host.terminal.result import Result

if TYPE_CHECKING:
    from pathlib import Path

    from fpgapipe.host.terminal.console import Table


@dataclass(frozen=True)
class Generated(Result):
    """How a network continues a prompt.

    Attributes
    ----------
    network : str
    weights : Path
        Build or checkpoint whose weights were taken.
    backend : str
    context : int
        Most tokens that the network reads: of more, the last ones.
    prompt : tuple of int
        Tokens that were given.
    rows : tuple of dict
        For each chosen token its ``token``, its ``character`` (None if tokens are no characters),
        and the ``probability`` that the network gives it, before temperature and top-k.
    is_text : bool
        Whether tokens are characters.
    temperature : float or None
        None if the likeliest token was chosen.
    top_k : int or None
    seed : int or None
    cycles : int or None
        Cycles of all passes, if they are counted.
    """

    RECORDS: ClassVar[str] = "generated"

    network: str
    weights: Path
    backend: str
    context: int
    prompt: tuple[int, ...]
    rows: tuple[dict[str, Any], ...]
    is_text: bool
    temperature: float | None = None
    top_k: int | None = None
    seed: int | None = None
    cycles: int | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """The chosen tokens."""
        return tuple(row["token"] for row in self.rows)

    @property
    def text(self) -> str:
        """The prompt and the chosen tokens: their characters, or their numbers."""
        whole = (*self.prompt, *self.tokens)
        return text_of(whole) if self.is_text else ",".join(map(str, whole))

    def to_dict(self) -> dict[str, Any]:
        """The prompt, the chosen tokens, and how they were chosen."""
        return {
            "network": self.network,
            "weights": str(self.weights),
            "backend": self.backend,
            "context": self.context,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "seed": self.seed,
            "cycles": self.cycles,
            "prompt": list(self.prompt),
            "text": self.text,
            self.RECORDS: list(self.rows),
        }

    def shown(self) -> Iterator[Table | str]:
        """The text, or the numbers."""
        yield self.text

    def text_for(self, path: Path) -> str:
        """Contents of a file of a name: the text, or JSON if it ends in ``.json``."""
        if path.suffix.lower() == ".json":
            return json.dumps(self.to_dict(), indent=1) + "\n"
        return self.text + "\n"
