"""Where a host reaches a device that runs: the part of a cluster file that only a run needs."""

import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator

from fpgapipe.boards.block import Block
from fpgapipe.boards.quantities import quantity, sentence, text, whole
from fpgapipe.boards.yaml_file import Loc
from fpgapipe.errors import shown

MOST = (1 << 48) - 1
"""Largest address; those of memory have 48 bits."""

MOST_NODES = 31
"""Largest number of nodes of a board: kernels of Vitis, UG1393."""

_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F_]{1,20}", re.ASCII)


def address(what: str) -> BeforeValidator:
    """Return the rule for an address: a whole number, or hexadecimal digits after ``0x``."""

    def check(value: Any) -> int:
        number = value
        if isinstance(value, str) and _HEXADECIMAL.fullmatch(value):
            number = int(value.replace("_", ""), 16)
        if type(number) is not int or not 0 <= number <= MOST:
            raise sentence(f"must be 0..{MOST:#x} ({what}), not {shown(value)}")
        return number

    return BeforeValidator(check)


def card(what: str) -> BeforeValidator:
    """Return the rule for a card: its number, or text."""
    rule = text(what, longest=64)

    def check(value: Any) -> Any:
        is_number = type(value) is int and 0 <= value < 1 << 16
        return rule.func(str(value) if is_number else value)  # type: ignore[call-arg]

    return BeforeValidator(check)


class Address(Block):
    """Where a device is.

    Attributes
    ----------
    device : str
        The card: its number, or its place on the bus, such as ``0000:3b:00.1``, or the host and
        port at which it is served, such as ``localhost:1234``.
    node : int
        Number of the core on its board, where that has several nodes.
    registers, memory : int
        Addresses of the core's registers, and of the memory that it may use, on the bus of the
        host's access.
    memory_bytes : int or None
        Size of that memory; None stands for what the board has.
    bitstream : str or None
        Path of the bitstream from the folder of the cluster file, where the transport loads it.
    csr : str or None
        Path of the map of LiteX's SoC, ``csr.csv``, from the folder of the cluster file.
    agent : str or None
        Host and port of the agent that serves the device, such as ``lab-a:7000``; None for a device
        of this host. The other keys are then what the agent goes by.
    ca, token_file : str or None
        Paths of the certificates that the agent's clients trust, and of the token that they have,
        from the folder of the cluster file.
    """

    device: Annotated[str, card("number of the card, its place on the bus, or host:port")] = "0"
    node: Annotated[int, whole(0, MOST_NODES - 1, "number of a core on its board")] = 0
    registers: Annotated[int, address("address of the registers")] = 0
    memory: Annotated[int, address("address of the memory")] = 0
    memory_bytes: (
        Annotated[int, quantity("bytes", "4 KiB", "16 TiB", "size of the memory", is_whole=True)]
        | None
    ) = None
    bitstream: Annotated[str, text("path of the bitstream")] | None = None
    csr: Annotated[str, text("path of the SoC's csr.csv")] | None = None
    agent: (
        Annotated[
            str,
            text(
                "host and port of an agent",
                longest=260,
                pattern=r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[1-9][0-9]{0,4}",
                rule="such as lab-a:7000",
            ),
        ]
        | None
    ) = None
    ca: Annotated[str, text("path of trusted certificates")] | None = None
    token_file: Annotated[str, text("path of a token")] | None = None

    def faults(self) -> Iterator[tuple[Loc, str]]:
        """Check that what belongs to an agent comes with one."""
        if self.agent is not None and self.ca is None:
            yield ("ca",), "must name the certificates that are trusted, since there is 'agent'"
        for key in ("ca", "token_file"):
            if self.agent is None and getattr(self, key) is not None:
                yield (key,), "must be left out where there is no 'agent'"
