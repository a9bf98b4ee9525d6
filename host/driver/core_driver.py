"""The driver of one device: what it is, whether it works, its program, its end, its state."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.host.driver.device_memory import DeviceMemory
from fpgapipe.hw.hls_models.model.core_protocol import (
    error_text,
    prepare_program,
    progress_counters,
)
from fpgapipe.hw.hls_models.model.core_state import CoreState
from fpgapipe.hw.hls_models.model.registers import DATA_BITS, Kind, RegisterMap
from fpgapipe.hw.hls_models.spec.link import LinkState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fpgapipe.host.driver.transport import Transport
    from fpgapipe.hw.hls_models.isa.instructions import Instruction
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec

ALL_ONES = (1 << DATA_BITS) - 1
"""Answer of a bus where there is no device."""

HALVES = ("LO", "HI")
"""Registers of a number of 64 bits, in the order in which they must be read."""

SCRATCH = ("PROGRAM_LO", "PROGRAM_HI", "MEMORY_LIMIT_LO", "MEMORY_LIMIT_HI")
"""Registers whose contents mean nothing before a program starts."""

WORD_BYTES = 64
"""Bytes that a memory is checked by."""

LEAST_WRITES = 20_000
"""Words that are written to a memory one by one, at least, to see whether one is lost."""

WRITES_S = 5.0
"""Seconds after which no further one is written: a serial line takes some 20 ms for each."""


class DeviceFault(UserError):
    """A device is not what it should be, does not do what it should, or does not answer."""


class CoreDriver:
    """Drives the core of one device, whatever it is reached by.

    Parameters
    ----------
    name : str
        Name of the device in messages.
    core : CoreSpec
        Core that the device is expected to have.
    transport : Transport

    Attributes
    ----------
    name, core, transport
    registers : RegisterMap
    memory : DeviceMemory or None
        Memory of the programs; None before `load` and `reserve`.
    """

    def __init__(self, name: str, core: CoreSpec, transport: Transport) -> None:
        self.name, self.core, self.transport = name, core, transport
        self.registers = RegisterMap(core)
        self.memory: DeviceMemory | None = None

    # ------------------------------------------------------------------ registers

    def read(self, name: str) -> int:
        """Read the register of a name."""
        return self.transport.read_register(self.registers.offset(name))

    def write(self, name: str, value: int) -> None:
        """Write the register of a name."""
        self.transport.write_register(self.registers.offset(name), value)

    def read_pair(self, name: str) -> int:
        """Read a number of 64 bits from the registers ``name_LO`` and ``name_HI``."""
        return self.read_pairs([name])[name]

    def command(self, register: str, *commands: str) -> None:
        """Give commands of a register, such as ``start`` of CONTROL."""
        self.write(register, sum(self.registers[register].field(name).mask for name in commands))

    def read_pairs(self, names: Sequence[str]) -> dict[str, int]:
        """Read numbers of 64 bits, as `read_pair` does, in one transfer."""
        halves = [self.registers.offset(f"{name}_{half}") for name in names for half in HALVES]
        found = self.transport.read_registers(halves)
        pairs = zip(names, found[::2], found[1::2], strict=True)
        return {name: high << DATA_BITS | low for name, low, high in pairs}

    def counters(self) -> dict[str, int]:
        """Values of all counters, which go on from program to program."""
        return self.read_pairs(list(self.registers.counters))

    def fault(self, what: str) -> DeviceFault:
        """An error of this device."""
        return DeviceFault(f"{self.name}: {what}")

    # ------------------------------------------------------------------ is it there, does it work

    def check_identity(self) -> None:
        """Check that the device has the core that is expected.

        Raises
        ------
        DeviceFault
            If nothing answers, if something else does, or if it is another core.
        """
        first = self.read("ID")
        if first in (0, ALL_ONES):
            raise self.fault(
                f"its registers read as {first:#010x}, so no core answers there; load the build's "
                "bitstream, and look at the address of the registers and at the core's reset"
            )
        expected = self.registers["ID"].reset
        if first != expected:
            raise self.fault(
                f"register ID reads as {first:#010x}, not {expected:#010x}: another design is "
                "loaded, or the registers lie at another address"
            )
        version, known = self.read("VERSION"), self.registers["VERSION"].reset
        if version != known:
            raise self.fault(
                f"its core has version {version} of the registers and instructions, and this "
                f"fpgapipe drives version {known}; build it again and load the new bitstream"
            )
        wrong = [
            f"{register.name} {found}, not {register.reset}"
            for register in self.registers
            if register.kind is Kind.CONSTANT and register.name != "CONFIGURATION"
            if (found := self.read(register.name)) != register.reset
        ]
        digest = self.read("CONFIGURATION")
        if wrong or digest != self.registers["CONFIGURATION"].reset:
            raise self.fault(
                f"the bitstream of another core is loaded, with configuration {digest:08x} where "
                f"the build has {self.core.digest}"
                f"{' (' + '; '.join(wrong[:6]) + ')' if wrong else ''}; load this build's"
            )

    def check_registers(self) -> None:
        """Write patterns to registers and read them back; no program may run.

        Raises
        ------
        DeviceFault
            If one reads as something else than what was written.
        """
        patterns = [0, ALL_ONES, 0x55555555, 0xAAAAAAAA, *(1 << bit for bit in range(DATA_BITS))]
        for pattern in patterns:
            written = {}
            for number, name in enumerate(SCRATCH):
                value = (pattern ^ number * 0x01010101) & ALL_ONES
                self.write(name, value)
                written[name] = value & self.registers[name].writable
            for name, value in written.items():
                if (found := self.read(name)) != value:
                    raise self.fault(
                        f"register {name} reads as {found:#010x} after {value:#010x} was written; "
                        "the path to its registers loses or changes data: look at whether the "
                        "design meets its clock, and at the width and addresses of that bus"
                    )
        for name in SCRATCH:
            self.write(name, 0)

    def check_memory(self, base: int, size: int) -> tuple[int, int]:
        """Write and read back a word at each distance that one address line makes, and many words.

        What the memory holds there is lost.

        Parameters
        ----------
        base, size : int
            Address of the memory on the core's bus, and its bytes, at least 64.

        Returns
        -------
        (int, int)
            Number of distances, and number of words that were written one by one: so many that a
            way which loses one of 10,000 is found, unless it takes longer than `WRITES_S`.

        Raises
        ------
        DeviceFault
            If a word reads as something else than what was written; the error says whether it is
            what was written elsewhere.
        """
        places = [0, *(1 << bit for bit in range(6, size.bit_length())), size - WORD_BYTES]
        places = sorted({place for place in places if 0 <= place <= size - WORD_BYTES})
        words = {place: _words_for(base + place, 1) for place in places}
        for place, word in words.items():
            self.transport.write(base + place, word)
        for place, word in words.items():
            found = self.transport.read(base + place, WORD_BYTES)
            if np.array_equal(found, word):
                continue
            same = next((at for at, other in words.items() if np.array_equal(found, other)), None)
            where = f"memory at {base + place:#x}"
            if same is not None:
                raise self.fault(
                    f"{where} reads as what was written to {base + same:#x}: an address "
                    "line does nothing, or the memory is smaller than its map; look at the address "
                    "map of the design, and at 'memory' and 'memory_bytes' in the cluster file"
                )
            raise self.fault(
                f"{where} reads as something else than what was written: look at whether the "
                "memory's controller is calibrated, and at whether others use this memory"
            )
        return len(places), self._check_writes(base, min(size // WORD_BYTES, LEAST_WRITES))

    def _check_writes(self, base: int, count: int) -> int:
        """Write so many words one by one, as often as it takes, and read them back together."""
        done, last_s = 0, time.monotonic() + WRITES_S
        while done < LEAST_WRITES and (not done or time.monotonic() < last_s):
            written = _words_for(base + done, count)
            for at in range(0, written.size, WORD_BYTES):
                self.transport.write(base + at, written[at : at + WORD_BYTES])
                done += 1
                if time.monotonic() > last_s:
                    written = written[: at + WORD_BYTES]
                    break
            wrong = np.flatnonzero(self.transport.read(base, written.size) != written)
            if wrong.size:
                lost = np.unique(wrong // WORD_BYTES)
                raise self.fault(
                    f"{lost.size} of {count:,} words of {WORD_BYTES} bytes in its memory, the "
                    f"first at {base + WORD_BYTES * int(lost[0]):#x}, read as something else than "
                    "what was written one by one: the way to its memory loses or changes data now "
                    "and then; look at whether the design meets its clocks, and at the bus"
                )
        return done

    # ------------------------------------------------------------------ links

    def enable_link(self, link: int, seed: int) -> None:
        """Turn a link on, with a seed that no other end of the cluster has."""
        self.write(f"LINK{link}_SEED", seed)
        self.write(f"LINK{link}_ENABLE", 1)

    def link_state(self, link: int) -> LinkState:
        """State of a link.

        Raises
        ------
        DeviceFault
            If the register has no state.
        """
        found = (
            self.registers[f"LINK{link}_STATUS"].field("state").of(self._sane(f"LINK{link}_STATUS"))
        )
        try:
            return LinkState(found)
        except ValueError:
            raise self.fault(f"link {link} has the state {found}, which there is not") from None

    def link_counters(self, link: int, names: Sequence[str]) -> Mapping[str, int]:
        """Counters of a link, by name."""
        found = self.read_pairs([f"LINK{link}_{name}" for name in names])
        return dict(zip(names, found.values(), strict=True))

    def phy_ticks(self, link: int) -> int | None:
        """Ticks of the clock of a link's PHY; None if the core has not yet counted them."""
        register = self.registers[f"LINK{link}_CLOCK"]
        found = self._sane(register.name)
        return register.field("ticks").of(found) if register.field("known").of(found) else None

    # ------------------------------------------------------------------ programs

    def load(self, image: NDArray[np.uint8], entry: int, program: Sequence[Instruction]) -> None:
        """Reserve memory, and write the image with its program; see `DeviceMemory.load`."""
        self.reserve(image.size).load(image, entry, program)

    def reserve(self, size_bytes: int) -> DeviceMemory:
        """Reserve memory for programs, unless as much is reserved already, and return it."""
        if self.memory is None or self.memory.size != size_bytes:
            base = self.transport.allocate(size_bytes)
            if base % 4096:
                raise self.fault(f"memory must begin at a multiple of 4096, not at {base:#x}")
            self.memory = DeviceMemory(self.transport, base, size_bytes, self.name)
        return self.memory

    def prepare(self, entry: int, scalars: Sequence[int]) -> None:
        """Write all registers that a program needs before it starts; its interrupt is then low."""
        assert self.memory is not None, "memory was reserved"
        base = self.memory.base
        values = [
            (self.registers.offset(f"SCALAR{index}"), bits) for index, bits in enumerate(scalars)
        ]
        prepare_program(
            lambda offset, value: values.append((offset, value)),
            self.registers,
            base + entry,
            base + self.memory.size,
            base,
        )
        self.transport.write_registers(values)

    def start(self) -> None:
        """Start the program that was prepared."""
        self.command("CONTROL", "start")

    def has_ended(self) -> bool:
        """Whether the program has ended, and ended well.

        Raises
        ------
        DeviceFault
            If it ended in an error, was aborted, or never started.
        """
        status, fields = self._sane("STATUS"), self.registers["STATUS"]
        if status & fields.field("running").mask:
            return False
        if status & fields.field("error").mask:
            raise self.fault(error_text(self.transport.read_register, self.registers))
        if not status & fields.field("done").mask:
            raise self.fault(
                "no program runs and none has ended: it was aborted, the core was reset, or the "
                "command to start did not arrive"
            )
        return True

    def abort(self) -> None:
        """End the program at once; what it has written stays."""
        self.command("CONTROL", "abort")

    def progressed(self) -> float:
        """Time (`Transport.now`) at which the core was last seen to make progress."""
        names = progress_counters(self.registers)
        return self.transport.progressed([self.registers.offset(f"{name}_LO") for name in names])

    def state(self) -> list[str]:
        """State of the device at this moment, in words; see `CoreState`."""
        at, program = self.memory.program if self.memory else (0, b"")
        state = CoreState(
            self.registers,
            self.transport.read_register,
            lambda entry: program if entry == at else b"",
        )
        return [*self.transport.state(), *state.lines()]

    def _sane(self, register: str) -> int:
        """Read a register with fields, whose other bits are 0 unless the device is gone."""
        value = self.read(register)
        if value & ~sum(field.mask for field in self.registers[register].fields):
            raise self.fault(
                f"register {register} reads as {value:#010x}, which no core answers: the device is "
                "gone from its bus, or its bitstream was replaced"
            )
        return value


def _words_for(address: int, count: int) -> NDArray[np.uint8]:
    """Bytes of some words that differ from those for any other address."""
    random = np.random.default_rng(address)
    return random.integers(0, 256, count * WORD_BYTES, dtype=np.uint8)
