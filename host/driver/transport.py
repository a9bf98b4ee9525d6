"""The way to reach one device: its registers, its memory, and its interrupt."""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fpgapipe.closing import Closing
from fpgapipe.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from fpgapipe.boards.address import Address
    from fpgapipe.boards.schema import Board

FIRST_PAUSE_S, LONGEST_PAUSE_S = 50e-6, 10e-3
"""Pauses between two looks at a device that has not ended: the first one, and the longest."""


class TransportError(UserError):
    """A device could not be reached, or an access to it failed."""


@dataclass(frozen=True)
class Limits:
    """How long a driver waits for devices, in the time of their transport (`Transport.now`).

    Attributes
    ----------
    link : float
        Time in which both ends of a link must find each other.
    stall : float
        Time without progress of any device after which a run has stalled.
    unit : str
        Unit of time, for messages.
    look_s : float
        Pause between two looks at a link, seconds of the host.
    """

    link: float = 10.0
    stall: float = 10.0
    unit: str = "s"
    look_s: float = 0.001

    def said(self, time: float) -> str:
        """A time with its unit."""
        return f"{time:,g} {self.unit}"


class Transport(Closing):
    """Access to one device; a context manager, which closes it.

    Everything that a device does is asked of it through these functions, so that the driver is the
    same for all boards and for the simulator.

    Attributes
    ----------
    name : str
        Name of the kind of transport in the command line.
    limits : Limits
        How long a driver waits for the device unless it is told otherwise.
    """

    name: ClassVar[str]
    limits: Limits = Limits()
    _seen: tuple[int, ...] = ()
    _changed: float = 0.0

    @abstractmethod
    def close(self) -> None:
        """Release the device and its memory."""

    @abstractmethod
    def read_register(self, offset: int) -> int:
        """Read the register of 32 bits at a byte offset.

        Raises
        ------
        TransportError
            If the access fails. A device that is gone may also answer with all bits set.
        """

    @abstractmethod
    def write_register(self, offset: int, value: int) -> None:
        """Write 32 bits to the register at a byte offset; raises as `read_register` does."""

    def read_registers(self, offsets: Sequence[int]) -> list[int]:
        """Read registers one after the other; a transport may do so in one transfer."""
        return [self.read_register(offset) for offset in offsets]

    def write_registers(self, values: Sequence[tuple[int, int]]) -> None:
        """Write pairs of offset and value in their order; a transport may do so in one transfer."""
        for offset, value in values:
            self.write_register(offset, value)

    @abstractmethod
    def allocate(self, size_bytes: int) -> int:
        """Reserve memory of the device that is contiguous for its core.

        Parameters
        ----------
        size_bytes : int
            Number of bytes, at least 1.

        Returns
        -------
        int
            Address of the first byte on the core's bus, a multiple of 4096.

        Raises
        ------
        TransportError
            If the device has not as much.
        """

    @abstractmethod
    def write(self, address: int, data: NDArray[np.uint8]) -> None:
        """Write bytes to memory that was reserved; when this returns, the core reads them."""

    @abstractmethod
    def read(self, address: int, size_bytes: int) -> NDArray[np.uint8]:
        """Read bytes of memory that was reserved; the array belongs to the caller."""

    def wait(self, ended: Callable[[], bool], limit_s: float) -> bool:
        """Wait until the device's program has ended.

        Transports with an interrupt sleep until it comes, and look now and then all the same, since
        an interrupt may be lost.

        Parameters
        ----------
        ended : callable
            Function that reads a register and returns whether the program has ended.
        limit_s : float
            Seconds after which to give up.

        Returns
        -------
        bool
            Whether the program has ended.
        """
        last_s = time.monotonic() + limit_s
        pause_s = FIRST_PAUSE_S
        while not ended():
            left_s = last_s - time.monotonic()
            if left_s <= 0:
                return ended()
            self.pause(min(pause_s, left_s))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return True

    def pause(self, pause_s: float) -> None:
        """Let time pass, at most until the next interrupt; `wait` does so between two looks."""
        time.sleep(pause_s)

    def now(self) -> float:
        """Time that has passed for the device, in the unit of `limits`, from any beginning."""
        return time.monotonic()

    def progressed(self, counters: Sequence[int]) -> float:
        """Time (`now`) at which counters, given by their offsets, were last seen to change."""
        values = tuple(self.read_registers(counters))
        if values != self._seen:
            self._seen, self._changed = values, self.now()
        return self._changed

    def state(self) -> list[str]:
        """Description of the device without its registers, for errors."""
        return []


class BoardTransport(Transport):
    """Access to a board at the address that a cluster file has.

    Such a class is registered in `fpgapipe.host.transports.opening`, or by another package as an
    entry point of the group ``fpgapipe.transports`` that has its `name`.

    Attributes
    ----------
    has_nodes : bool
        Whether it reaches each of several cores of a board, by the address's ``node``.
    """

    has_nodes: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def open(cls, address: Address, board: Board, folder: Path) -> BoardTransport:
        """Open a device.

        Parameters
        ----------
        address : Address
            What the cluster file says of the device.
        board : Board
        folder : Path
            Folder of the cluster file, from which the paths in the address lead.

        Raises
        ------
        UserError
            If the address lacks something, or the device cannot be opened.
        """
