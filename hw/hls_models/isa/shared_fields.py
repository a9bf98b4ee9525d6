"""Fields of an instruction's body that many instructions share."""

from collections.abc import Mapping
from typing import Any


class SharedFields(dict[str, Any]):
    """Fields of a body that many instructions share, with what was found from them.

    The fields must not change.

    Attributes
    ----------
    known : dict
        Results of functions of the fields, by the names of these and what else they depend on.
    """

    __slots__ = ("known",)

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self.known: dict[Any, Any] = {}
