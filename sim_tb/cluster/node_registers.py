"""Registers of the nodes of a simulated cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from fpgapipe.sim_tb.native.native import check_value

if TYPE_CHECKING:
    from collections.abc import Sequence


class NodeRegisters(ABC):
    """A cluster whose devices all run until a node responds to an access to its registers.

    The cycles of a stall are counted from a write on, as `begin` does.
    """

    _stall_cycles: int

    @abstractmethod
    def _access(self, number: int, address: int, value: int, write: bool, max_cycles: int) -> int:
        """Read or write a register; returns what was read."""

    @abstractmethod
    def begin(self, stall_cycles: int) -> None:
        """Count the cycles of a stall from now on."""

    def write_register(
        self, number: int, address: int, value: int, *, max_cycles: int = 1000
    ) -> None:
        """Write 32 bits to a register of a node; all devices run until the node responds.

        Raises
        ------
        DeviceError
            If the node responds with an error or not within `max_cycles`, or if another device
            fails; where ranks share the devices, on all of them.
        """
        check_value(value)
        self._access(number, address, value, True, max_cycles)
        self.begin(self._stall_cycles)

    def read_register(self, number: int, address: int, *, max_cycles: int = 1000) -> int:
        """Read a register of 32 bits; runs and raises as `write_register` does."""
        return self._access(number, address, 0, False, max_cycles)

    def read_registers(self, number: int, addresses: Sequence[int]) -> list[int]:
        """Read registers of a node one after the other."""
        return [self.read_register(number, address) for address in addresses]

    def write_registers(self, number: int, values: Sequence[tuple[int, int]]) -> None:
        """Write registers of a node, pairs of address and value, one after the other."""
        for address, value in values:
            self.write_register(number, address, value)
