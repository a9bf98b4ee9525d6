"""Numbers with units as people write them: ``16 GiB``, ``460 GB/s``, ``300 MHz``, ``0.5 us``.

Each rule annotates a field of a pydantic model, ``lut: Annotated[int, whole(...)]``. Its message is
a whole sentence: the rule, the limits with their unit, and what came.
"""

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from fpgapipe.errors import nearest, shown

_SI = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_FRACTIONS = {"m": "1e-3", "u": "1e-6", "µ": "1e-6", "n": "1e-9", "p": "1e-12"}

UNITS: dict[str, dict[str, Decimal]] = {
    "bytes": {f"{p}B": Decimal(s) for p, s in (_SI | _BINARY).items()},
    "bytes/s": {f"{p}B/s": Decimal(s) for p, s in (_SI | _BINARY).items()},
    "bits/s": {f"{p}b/s": Decimal(s) for p, s in _SI.items()},
    "Hz": {f"{p}Hz": Decimal(s) for p, s in _SI.items()},
    "s": {"s": Decimal(1)} | {f"{p}s": Decimal(s) for p, s in _FRACTIONS.items()},
}
"""Base unit to the spellings that a file may use, each with its factor."""

EXAMPLES = {
    "bytes": "4 GiB",
    "bytes/s": "19.2 GB/s",
    "bits/s": "100 Gb/s",
    "Hz": "300 MHz",
    "s": "1 us",
}
"""Base unit to what a message shows."""

_NUMBER_AND_UNIT = re.compile(
    r"([-+]?[0-9][0-9_]{0,30}(?:\.[0-9]{1,20})?(?:[eE][-+]?[0-9]{1,3})?)\s*([^\s0-9].*)", re.ASCII
)


def sentence(text: str) -> PydanticCustomError:
    """Make an error whose message is `text` as it stands, braces included."""
    return PydanticCustomError("sentence", "{text}", {"text": text})


def _is_finite(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _limits(low: float | str, high: float | str, what: str) -> str:
    return f"must be {low}..{high} ({what})"


def whole(low: int, high: int, what: str) -> BeforeValidator:
    """A whole number within limits."""

    def check(value: Any) -> int:
        if not _is_finite(value) or value != int(value) or not low <= value <= high:
            raise sentence(f"{_limits(low, high, what)}, not {shown(value)}")
        return int(value)

    return BeforeValidator(check)


def share(what: str) -> BeforeValidator:
    """A share above 0 and at most 1."""

    def check(value: Any) -> float:
        if not _is_finite(value) or not 0 < value <= 1:
            raise sentence(f"must be above 0 and at most 1 ({what}), not {shown(value)}")
        return float(value)

    return BeforeValidator(check)


def quantity(
    unit: str, low: str, high: str, what: str, *, is_whole: bool = False
) -> BeforeValidator:
    """A number of a unit, or a string with a prefix of that unit.

    Parameters
    ----------
    unit : str
        A key of `UNITS`.
    low, high : str
        The limits, written as a file would: ``"1 MHz"``.
    what : str
        What it is, for the message.
    is_whole : bool
        Whether fractions of the base unit are refused, and the result is an int.
    """
    parse = _parser(unit)
    lowest, highest = parse(low), parse(high)

    def check(value: Any) -> int | float:
        number = parse(value)
        if not lowest <= number <= highest:
            raise sentence(f"{_limits(low, high, what)}, not {shown(value)}")
        if not is_whole:
            return float(number)
        if number != int(number):
            raise sentence(f"must be a whole number of {unit} ({what}), not {shown(value)}")
        return int(number)

    return BeforeValidator(check)


def _parser(unit: str) -> Callable[[Any], Decimal]:
    spellings = UNITS[unit]

    def parse(value: Any) -> Decimal:
        if _is_finite(value):
            return Decimal(repr(value))
        match = _NUMBER_AND_UNIT.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            raise sentence(
                f"must be a number of {unit}, or a string such as '{EXAMPLES[unit]}', "
                f"not {shown(value)}"
            )
        number, spelling = match.groups()
        if spelling not in spellings:
            raise sentence(
                f"must be in {unit} ({', '.join(spellings)}), not {shown(spelling)}"
                f"{nearest(spelling, spellings)}"
            )
        return Decimal(number.replace("_", "")) * spellings[spelling]

    return parse


def text(
    what: str, *, longest: int = 400, pattern: str | None = None, rule: str = ""
) -> BeforeValidator:
    """A line of printable text.

    Parameters
    ----------
    what : str
        What it is, for the message.
    longest : int
        In characters.
    pattern, rule : str
        A regular expression for the whole text, and the same in words.
    """

    def check(value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise sentence(f"must be text ({what}), not {shown(value)}")
        line = " ".join(value.split())
        if len(line) > longest or not line.isprintable():
            raise sentence(
                f"must be 1..{longest} printable characters ({what}), not {shown(value)}"
            )
        if pattern is not None and not re.fullmatch(pattern, line, re.ASCII):
            raise sentence(f"must be {rule} ({what}), not {shown(value)}")
        return line

    return BeforeValidator(check)


def word(what: str) -> BeforeValidator:
    """A name of lower-case letters, digits, ``.``, ``_`` and ``-``."""
    rule = "1..64 characters of a-z, 0-9, '.', '_' and '-', the first a letter or digit"
    return text(what, longest=64, pattern=r"[a-z0-9][a-z0-9._-]{0,63}", rule=rule)


def one_of(allowed: tuple[str, ...], what: str) -> BeforeValidator:
    """One of a few words."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            hint = nearest(value, allowed) if isinstance(value, str) else ""
            raise sentence(
                f"must be one of {', '.join(allowed)} ({what}), not {shown(value)}{hint}"
            )
        return value

    return BeforeValidator(check)
