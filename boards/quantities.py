"""Numbers with units as people write them: ``16 GiB``, ``460 GB/s``, ``300 MHz``, ``0.5 us``.

Each rule annotates a field of a pydantic model, as in ``lut: Annotated[int, whole(...)]``. The
message of a rule has the rule itself, the limits with their unit, and the value that was given.
"""

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any

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
"""For each base unit, the spellings that a file may use, with their factors."""

EXAMPLES = {
    "bytes": "4 GiB",
    "bytes/s": "19.2 GB/s",
    "bits/s": "100 Gb/s",
    "Hz": "300 MHz",
    "s": "1 us",
}
"""For each base unit, the example that messages show."""

_NUMBER_AND_UNIT = re.compile(
    r"([-+]?[0-9][0-9_]{0,30}(?:\.[0-9]{1,20})?(?:[eE][-+]?[0-9]{1,3})?)\s*([^\s0-9].*)", re.ASCII
)


def sentence(text: str) -> PydanticCustomError:
    """Return an error with exactly `text` as its message, braces included."""
    return PydanticCustomError("sentence", "{text}", {"text": text})


def _is_finite(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _limits(low: float | str, high: float | str, what: str) -> str:
    return f"must be {low}..{high} ({what})"


def whole(low: int, high: int, what: str) -> BeforeValidator:
    """Return the rule for a whole number within limits."""

    def check(value: Any) -> int:
        if not _is_finite(value) or value != int(value) or not low <= value <= high:
            raise sentence(f"{_limits(low, high, what)}, not {shown(value)}")
        return int(value)

    return BeforeValidator(check)


def share(what: str) -> BeforeValidator:
    """Return the rule for a share above 0 and at most 1."""

    def check(value: Any) -> float:
        if not _is_finite(value) or not 0 < value <= 1:
            raise sentence(f"must be above 0 and at most 1 ({what}), not {shown(value)}")
        return float(value)

    return BeforeValidator(check)


def quantity(
    unit: str, low: str, high: str, what: str, *, is_whole: bool = False
) -> BeforeValidator:
    """Return the rule for a plain number in a base unit, or a string of a number and a unit.

    Parameters
    ----------
    unit : str
        Base unit, a key of `UNITS`.
    low, high : str
        Limits, written as in a file: ``"1 MHz"``.
    what : str
        Name of the quantity in the message.
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
    """Return the rule for a line of printable text.

    Parameters
    ----------
    what : str
        Name of the text in the message.
    longest : int
        Largest number of characters.
    pattern, rule : str
        Regular expression for the whole text, and its description for the message.
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
    """Return the rule for a name of lower-case letters, digits, ``.``, ``_`` and ``-``."""
    rule = "1..64 characters of a-z, 0-9, '.', '_' and '-', the first a letter or digit"
    return text(what, longest=64, pattern=r"[a-z0-9][a-z0-9._-]{0,63}", rule=rule)


def one_of(allowed: tuple[str, ...], what: str) -> BeforeValidator:
    """Return the rule for one of a few allowed words."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            hint = nearest(value, allowed) if isinstance(value, str) else ""
            raise sentence(
                f"must be one of {', '.join(allowed)} ({what}), not {shown(value)}{hint}"
            )
        return value

    return BeforeValidator(check)


Source = Annotated[str, text("a key of 'sources', or 'estimate: reason'")]
"""Source of a block of numbers."""
