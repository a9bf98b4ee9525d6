"""Fields and groups of fields: the encoding of instructions, registers and link frames."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Field:
    """A number in an instruction.

    Parameters
    ----------
    name : str
    bits : int
        Width of the number.
    signed : bool
        Whether the number is in two's complement; it is unsigned otherwise.
    """

    name: str
    bits: int
    signed: bool = False


@dataclass(frozen=True)
class Group:
    """Fields that belong together; if `times` is above 0, a list of so many such groups."""

    name: str
    fields: "tuple[Field | Group, ...]"
    times: int = 0

    @cached_property
    def bits(self) -> int:
        """Width of the group, all repetitions included."""
        return sum(member.bits for member in self.fields) * max(self.times, 1)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(member.name for member in self.fields)

    def shift_of(self, name: str, *rest: str) -> int:
        """Number of the first bit of a field, given the names of the groups around it and its own.

        None of these groups is repeated.
        """
        shift = 0
        for member in self.fields:
            if member.name == name:
                return shift if isinstance(member, Field) else shift + member.shift_of(*rest)
            shift += member.bits
        raise KeyError(name)

    def pack(self, values: Mapping[str, Any]) -> int:
        """Encode one of these groups.

        Raises
        ------
        ValueError
            If a field is missing or unknown, or a number does not fit its field.
        """
        if values.keys() != self._names:
            names = [member.name for member in self.fields]
            raise ValueError(
                f"{self.name} must have the fields {', '.join(names) or 'none'}, not "
                f"{', '.join(values) or 'none'}"
            )
        packed = shift = 0
        for member in self.fields:
            value = values[member.name]
            if isinstance(member, Field):
                low = -(1 << (member.bits - 1)) if member.signed else 0
                high = low + (1 << member.bits)
                if not low <= value < high:
                    raise ValueError(
                        f"{self.name} {member.name} must be in {low}..{high - 1} "
                        f"({member.bits} bits), not {value}"
                    )
                part = int(value) & ((1 << member.bits) - 1)
            elif member.times:
                if len(value) != member.times:
                    raise ValueError(
                        f"{self.name} {member.name} must have {member.times} entries, not "
                        f"{len(value)}"
                    )
                single = member.bits // member.times
                part = 0
                for index, item in enumerate(value):
                    part |= member.pack(item) << (index * single)
            else:
                part = member.pack(value)
            packed |= part << shift
            shift += member.bits
        return packed

    def unpack(self, packed: int) -> dict[str, Any]:
        """Decode one of these groups."""
        values: dict[str, Any] = {}
        for member in self.fields:
            part = packed & ((1 << member.bits) - 1)
            packed >>= member.bits
            if isinstance(member, Field):
                negative = member.signed and part >> (member.bits - 1)
                values[member.name] = part - (1 << member.bits) if negative else part
            elif member.times:
                single = member.bits // member.times
                mask = (1 << single) - 1
                values[member.name] = [
                    member.unpack(part >> (i * single) & mask) for i in range(member.times)
                ]
            else:
                values[member.name] = member.unpack(part)
        return values
