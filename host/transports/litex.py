"""The transport to SoCs made with LiteX, through its own server and RemoteClient.

``litex_server`` has the serial port of a board and offers its bus over TCP. The map of that bus is
the file ``csr.csv`` that LiteX writes with the bitstream. The SoC has no processor, so the host
brings up the SDRAM: it gives the commands that LiteDRAM lists for the chip, which the SoC's
constant `SEQUENCE` holds.
"""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.host.driver.allocation import Allocation
from fpgapipe.host.driver.device_memory import TRIES
from fpgapipe.host.driver.transport import BoardTransport, TransportError
from fpgapipe.optional import require

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from fpgapipe.boards.address import Address
    from fpgapipe.boards.schema import Board

REGISTERS, MEMORY = "fpgapipe", "main_ram"
"""Names of the two regions of the bus: the core's registers, and the SDRAM."""

SEQUENCE = "fpgapipe_sdram_sequence"
"""Constant of the SoC: the steps that bring up its SDRAM, with blanks between them.

A step is ``kind:address:bank:value:cycles``. Its kind is ``control`` or ``command``, the register
that takes the value; the cycles are those to wait afterwards."""

ANSWER_LIMIT_S = 10.0
"""Seconds in which an answer must come."""

WORD_BYTES = 4

MOST_WORDS = 255
"""Words of a packet of the protocol, whose counts have eight bits."""

PACED_BYTES = 1 << 14
"""Bytes of memory after which a write waits for the device.

Writes have no answers, so the last word of these bytes is read. Otherwise a server whose
serial port is slow would have more to do than it can answer within `ANSWER_LIMIT_S`."""

_SOFTWARE, _HARDWARE = 0x0E, 0x01
"""Values of the register that gives the SDRAM to the host (with its clock enabled), or to the
controller."""


class LitexTransport(BoardTransport):
    """Access to a core in a SoC of LiteX.

    The core has the SDRAM from address 0 on, and no other master of the bus caches it.

    Parameters
    ----------
    server : str
        Where ``litex_server`` listens, such as ``localhost:1234``.
    csr : Path
        The SoC's ``csr.csv``.
    memory : int
        Address in the SDRAM from which on the core may use it.
    memory_bytes : int, optional
        Size of the memory that the core may use; by default up to the end of the SDRAM.
    limit_s : float
        Seconds in which an answer must come.

    Raises
    ------
    UserError
        If LiteX is not installed, or `server` or the file is not what it should be.
    TransportError
        If the server cannot be reached, or the SoC does not answer.
    """

    name = "litex"

    def __init__(
        self,
        server: str,
        csr: Path,
        *,
        memory: int = 0,
        memory_bytes: int | None = None,
        limit_s: float = ANSWER_LIMIT_S,
    ) -> None:
        host, _, port = server.rpartition(":")
        if not host or not port.isdecimal():
            raise UserError(
                f"the device must be the host and port of its litex_server, as localhost:1234, not "
                f"{server}"
            )
        self._server, self._limit_s, self._why = server, limit_s, ""
        client = self._client = _client(host, int(port), csr)
        try:
            self._registers = int(getattr(client.mems, REGISTERS).base)
            self._memory = int(getattr(client.mems, MEMORY).base)
            self._dfii = {
                name: getattr(client.regs, f"sdram_dfii_{name}").addr
                for name in (
                    "control",
                    *(f"pi0_{part}" for part in ("address", "baddress", "command")),
                    "pi0_command_issue",
                )
            }
            steps = _steps(str(getattr(client.constants, SEQUENCE)))
            clk_hz = float(client.constants.config_clock_frequency)
            size = int(getattr(client.mems, MEMORY).size)
        except (AttributeError, ValueError) as error:
            raise UserError(
                f"{csr} is not the map of a SoC of fpgapipe's package ({error}); name the csr.csv "
                "that was made with the bitstream"
            ) from None
        self._free = Allocation(memory, min(size, memory + (memory_bytes or size)))
        try:
            client.open()
            client.socket.settimeout(limit_s)
        except OSError as error:
            raise TransportError(
                f"no litex_server answers at {server}: {error}; start it with the board's serial "
                "port, as the package's README says"
            ) from None
        receive = client.receive_packet

        def received(socket: Any, size: int) -> Any:
            """Give a packet; LiteX would go on with zeros if none came."""
            packet = receive(socket, size)
            if packet == 0:
                raise self._lost(f"no answer came within {limit_s:g} s, or the server has ended")
            return packet

        client.receive_packet = received
        try:
            self._bring_up(steps, clk_hz)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, address: Address, board: Board, folder: Path) -> LitexTransport:
        """See `BoardTransport`."""
        if address.csr is None:
            raise UserError(
                "--backend litex needs the key csr, the path of the csr.csv that was made with the "
                "bitstream"
            )
        return cls(
            address.device,
            folder / address.csr,
            memory=address.memory,
            memory_bytes=address.memory_bytes,
        )

    def close(self) -> None:
        """See `Transport`."""
        self._client.close()

    def read_register(self, offset: int) -> int:
        """See `Transport`."""
        return int(self._read(self._registers + offset, 1)[0])

    def write_register(self, offset: int, value: int) -> None:
        """See `Transport`."""
        self._write(self._registers + offset, [value])

    def allocate(self, size_bytes: int) -> int:
        """See `Transport`."""
        return self._free.take(size_bytes)

    def write(self, address: int, data: NDArray[np.uint8]) -> None:
        """See `Transport`; words are written whole, so those at the ends are read before."""
        begin, skipped = divmod(address, WORD_BYTES)
        begin *= WORD_BYTES
        padded = np.zeros(-(-(skipped + data.size) // WORD_BYTES) * WORD_BYTES, np.uint8)
        if skipped:
            padded[:WORD_BYTES] = self._kept(begin)
        if (skipped + data.size) % WORD_BYTES:
            padded[-WORD_BYTES:] = self._kept(begin + padded.size - WORD_BYTES)
        padded[skipped : skipped + data.size] = data
        for at in range(0, padded.size, PACED_BYTES):
            words = padded[at : at + PACED_BYTES].view("<u4")
            place = self._memory + begin + at
            for first in range(0, words.size, MOST_WORDS):
                part = words[first : first + MOST_WORDS].tolist()
                self._write(place + first * WORD_BYTES, part)
            self._read(place + (words.size - 1) * WORD_BYTES, 1)

    def _kept(self, address: int) -> NDArray[np.uint8]:
        """A word that is written again, read until it is the same twice."""
        found = self.read(address, WORD_BYTES)
        for _ in range(TRIES):
            again = self.read(address, WORD_BYTES)
            if np.array_equal(found, again):
                return again
            found = again
        raise TransportError(
            f"{self._server}: memory at {address:#x} reads as something else each time: the serial "
            "line loses bytes, or the SDRAM does not work"
        )

    def read(self, address: int, size_bytes: int) -> NDArray[np.uint8]:
        """See `Transport`."""
        begin, skipped = divmod(address, WORD_BYTES)
        begin *= WORD_BYTES
        count = -(-(skipped + size_bytes) // WORD_BYTES)
        words = np.empty(count, "<u4")
        for first in range(0, count, MOST_WORDS):
            part = words[first : first + MOST_WORDS]
            part[:] = self._read(self._memory + begin + first * WORD_BYTES, part.size)
        return words.view(np.uint8)[skipped : skipped + size_bytes].copy()

    def _bring_up(self, steps: list[tuple[str, int, int, int, int]], clk_hz: float) -> None:
        """Bring the SDRAM up, as a processor would do at its start."""
        self._write(self._dfii["control"], [_SOFTWARE])
        for kind, address, bank, value, cycles in steps:
            self._write(self._dfii["pi0_address"], [address])
            self._write(self._dfii["pi0_baddress"], [bank])
            if kind == "control":
                self._write(self._dfii["control"], [value])
            else:
                self._write(self._dfii["pi0_command"], [value])
                self._write(self._dfii["pi0_command_issue"], [1])
            self._read(self._dfii["control"], 1)  # which comes back when all is done
            time.sleep(cycles / clk_hz)
        self._write(self._dfii["control"], [_HARDWARE])
        self._read(self._dfii["control"], 1)

    def _read(self, address: int, count: int) -> list[int]:
        """Read words of the SoC's bus."""
        self._check()
        try:
            found = self._client.read(address, count)
        except OSError as error:
            raise self._lost(str(error)) from None
        if len(found) != count:
            raise self._lost(f"{len(found)} words came instead of {count}")
        return [int(word) for word in found]

    def _write(self, address: int, words: list[int]) -> None:
        """Write words to the SoC's bus."""
        self._check()
        try:
            self._client.write(address, words)
        except OSError as error:
            raise self._lost(str(error)) from None

    def _check(self) -> None:
        if self._why:
            raise TransportError(self._why)

    def _lost(self, why: str) -> TransportError:
        """Return the error of a connection that is of no use any more: an answer may come late."""
        self._why = (
            f"the device behind {self._server} is lost: {why}; look at its litex_server, at its "
            "serial line, and at whether its bitstream is loaded"
        )
        return TransportError(self._why)


def _client(host: str, port: int, csr: Path) -> Any:
    """Make LiteX's client with the map in a file."""
    litex = require("litex", "--backend litex")

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # LiteX leaves the file to Python
            return litex.RemoteClient(host=host, port=port, csr_csv=str(csr))
    except OSError as error:
        raise UserError(f"{csr} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, IndexError) as error:
        raise UserError(f"{csr} is not a csr.csv of LiteX: {error}") from None


def _steps(text: str) -> list[tuple[str, int, int, int, int]]:
    """Read the steps of `SEQUENCE`."""
    found = []
    for step in text.split():
        kind, *numbers = step.split(":")
        if kind not in ("control", "command") or len(numbers) != 4:
            raise ValueError(f"the step {step} of {SEQUENCE} is not known")
        address, bank, value, cycles = (int(number) for number in numbers)
        found.append((kind, address, bank, value, cycles))
    if not found:
        raise ValueError(f"{SEQUENCE} has no steps")
    return found
