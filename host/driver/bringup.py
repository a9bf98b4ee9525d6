"""Checks of devices before the first program, one after the other, the simplest first."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.host.driver.core_driver import WORD_BYTES, DeviceFault
from fpgapipe.host.driver.device_memory import DeviceMemory
from fpgapipe.host.driver.devices import Devices
from fpgapipe.hw.hls_models.isa.instructions import Instruction, Opcode
from fpgapipe.hw.hls_models.isa.program import encode
from fpgapipe.hw.hls_models.model.dma import transfer
from fpgapipe.hw.hls_models.model.link_dma import packet
from fpgapipe.hw.hls_models.spec.link_clock import METER_CYCLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from fpgapipe.host.driver.core_driver import CoreDriver
    from fpgapipe.host.driver.devices import End
    from fpgapipe.host.driver.link_clocks import LinkClock

TRIED_BYTES = 1 << 16
"""Bytes of memory that programs of the checks use."""

PACKET = TRIED_BYTES // 4
"""Bytes of a packet that tries a link."""

SENT, CAME = TRIED_BYTES // 2, TRIED_BYTES // 2 + PACKET
"""Places of the packet that goes out and of the one that comes."""

PACKET_CYCLES = PACKET // 64
"""Cycles that a packet takes at least."""

LINK_COUNTERS = ("CRC_ERRORS", "REPLAYS")
"""Counters that rise if a link loses or damages frames."""


@dataclass(frozen=True)
class Checked:
    """Result of a check.

    Attributes
    ----------
    check : str
        What was checked.
    device : str
        Name of the device, or of the two devices of a link.
    passed : bool
    detail : str
        What was found, or what is wrong and what to do about it.
    """

    check: str
    device: str
    passed: bool
    detail: str


class Bringup:
    """Checks devices step by step; a device that fails a check is left out of those that follow.

    Parameters
    ----------
    devices : Devices
    memory_bytes : sequence of int
        Bytes of each device's memory that its program needs and that are tried.
    watch_s : float
        Seconds for which packets go over each link, at least one each way.
    clocks : mapping of (device, link) to LinkClock, optional
        Clocks at ends of links; those of other ends are not looked at.
    """

    def __init__(
        self,
        devices: Devices,
        memory_bytes: list[int],
        watch_s: float = 1.0,
        clocks: Mapping[End, LinkClock] | None = None,
    ) -> None:
        self._devices, self._watch_s, self._clocks = devices, watch_s, clocks or {}
        self._sizes = [max(size, TRIED_BYTES) for size in memory_bytes]
        self._good = set(range(len(devices.drivers)))

    def run(self) -> Iterator[Checked]:
        """Run all checks and give each result as soon as it is known."""
        for check, function in (
            ("identity", self._identity),
            ("registers", self._registers),
            ("memory", self._memory),
            ("core and memory", self._copy),
        ):
            for number in sorted(self._good):
                yield self._checked(check, (number,), function, self._devices.drivers[number])
        if self._devices.wiring and len(self._good) < len(self._devices.drivers):
            yield Checked("links", "all devices", False, "not tried, since a device failed")
            return
        for pair in self._devices.wiring:
            numbers = tuple(number for number, _ in pair)
            yield self._checked("link", numbers, self._link, pair)

    def _checked(
        self,
        check: str,
        numbers: tuple[int, ...],
        function: Callable[..., str],
        subject: object,
    ) -> Checked:
        name = " and ".join(self._devices.drivers[number].name for number in numbers)
        try:
            return Checked(check, name, True, function(subject))
        except UserError as error:
            self._good -= set(numbers)
            return Checked(check, name, False, str(error).removeprefix(f"{name}: "))

    def _identity(self, driver: CoreDriver) -> str:
        driver.check_identity()
        driver.abort()  # a host that died may have left a program that runs
        core = driver.core
        return f"a core of {core.rows} x {core.cols} cells, configuration {core.digest}"

    def _registers(self, driver: CoreDriver) -> str:
        driver.check_registers()
        return "all patterns read as they were written"

    def _memory(self, driver: CoreDriver) -> str:
        size = self._sizes[self._devices.drivers.index(driver)]
        base = driver.transport.allocate(size)
        places, writes = driver.check_memory(base, size)
        driver.memory = DeviceMemory(driver.transport, base, TRIED_BYTES, driver.name)
        return (
            f"{places} places of {size:,} bytes from {base:#x} on keep what is written, and "
            f"{writes:,} writes of {WORD_BYTES} bytes came, each"
        )

    def _copy(self, driver: CoreDriver) -> str:
        """Let the core copy bytes, so that it and the host see the same memory."""
        half = TRIED_BYTES // 2
        size = min(half // 2, driver.core.scratchpad.size_bytes)
        begin, end = half, half + half // 2
        program = [
            Instruction(Opcode.LOAD, signal=(0,), body=transfer(begin, 0, size)),
            Instruction(Opcode.STORE, (0,), (1,), body=transfer(end, 0, size)),
            Instruction(Opcode.END, (1,)),
        ]
        wanted = self._load(driver, program, begin, size)
        Devices([driver], [], limits=self._devices.limits).run([0], [[]])
        assert driver.memory is not None, "memory was checked"
        wrong = np.flatnonzero(driver.memory[end : end + size] != wanted)
        if wrong.size:
            raise driver.fault(
                f"the core copied {size:,} bytes, of which {wrong.size:,} are wrong: "
                "core and host do not see the same memory, so look at the addresses of its bus"
            )
        return f"the core copied {size:,} bytes"

    def _link(self, pair: tuple[End, End]) -> str:
        """Bring a link up, and send packets each way while its counters are watched."""
        drivers = [self._devices.drivers[number] for number, _ in pair]
        wiring = [((0, pair[0][1]), (1, pair[1][1]))]
        joined = Devices(drivers, wiring, limits=self._devices.limits)
        joined.abort()  # and parts of packets
        try:
            joined.links_up()
        except DeviceFault as error:
            raise UserError("\n".join([str(error), *self._clock_faults(pair)])) from None
        for driver, (_, link) in zip(drivers, pair, strict=True):
            program = [
                Instruction(Opcode.SEND, signal=(0,), body=packet(SENT, PACKET), engine=link),
                Instruction(Opcode.RECEIVE, signal=(1,), body=packet(CAME, PACKET), engine=link),
                Instruction(Opcode.END, (0, 1)),
            ]
            self._load(driver, program, SENT, PACKET)
        before = self._link_errors(pair)
        begin_s, count = time.monotonic(), 0
        while not count or time.monotonic() < begin_s + self._watch_s:
            self._exchange(joined, count)
            count += 1
        took_s = time.monotonic() - begin_s
        after = self._link_errors(pair)
        found = {name: after[name] - before[name] for name in after if after[name] != before[name]}
        went = f"{count * PACKET:,} bytes went each way in {took_s:.2g} s"
        if found:
            said = ", ".join(f"{count} {name}" for name, count in found.items())
            lines = [
                f"the link works, but while {went} there were {said}: look at the cable, "
                "the modules, and the reference clock of the transceivers",
                *self._clock_faults(pair),
            ]
            raise UserError("\n".join(lines))
        # Simulated time passes with programs alone.
        for more in range(METER_CYCLES // PACKET_CYCLES):
            if None not in self._ticks(pair).values():
                break
            self._exchange(joined, count + more)
        if wrong := self._clock_faults(pair):
            raise UserError("the link works, but " + "\n".join(wrong))
        clocks = [
            f"{self._clocks[end].found(ticks or 0)} at {self._devices.drivers[end[0]].name}"
            for end, ticks in self._ticks(pair).items()
        ]
        named = f"; clocks of the PHYs: {', '.join(clocks)}" if clocks else ""
        return f"up; {went}, and no frame was damaged or sent again{named}"

    def _ticks(self, pair: tuple[End, End]) -> dict[End, int | None]:
        """Ticks of the clocks at those ends whose clocks are looked at; None if not yet counted."""
        return {
            (number, link): self._devices.drivers[number].phy_ticks(link)
            for number, link in pair
            if (number, link) in self._clocks
        }

    def _clock_faults(self, pair: tuple[End, End]) -> list[str]:
        """Faults of the clocks of a link's PHYs, in words."""
        return [
            f"link {link} of {self._devices.drivers[number].name}: {fault}"
            for (number, link), ticks in self._ticks(pair).items()
            if (fault := self._clocks[number, link].fault(ticks))
        ]

    def _exchange(self, joined: Devices, number: int) -> None:
        """Send a packet of new random bytes each way, and compare what comes."""
        wanted = []
        for index, driver in enumerate(joined.drivers):
            assert driver.memory is not None, "memory was checked"
            random = np.random.default_rng((number, index))
            wanted.append(random.integers(0, 256, PACKET, dtype=np.uint8))
            driver.memory[SENT : SENT + PACKET] = wanted[-1]
        joined.run([0, 0], [[], []])
        for driver, data in zip(joined.drivers, reversed(wanted), strict=True):
            assert driver.memory is not None, "memory was checked"
            if not np.array_equal(driver.memory[CAME : CAME + PACKET], data):
                raise driver.fault(
                    f"a packet of {PACKET:,} bytes came with other bytes than were sent, and no "
                    "counter of the link says so: look at the device's memory"
                )

    def _link_errors(self, pair: tuple[tuple[int, int], ...]) -> dict[str, int]:
        return {
            f"{name} at {driver.name}": value
            for number, link in pair
            for driver in (self._devices.drivers[number],)
            for name, value in driver.link_counters(link, LINK_COUNTERS).items()
        }

    def _load(
        self, driver: CoreDriver, program: list[Instruction], begin: int, size: int
    ) -> NDArray[np.uint8]:
        """Load a program and random bytes; returns the bytes."""
        data = np.random.default_rng(begin).integers(0, 256, size, dtype=np.uint8)
        image = np.zeros(TRIED_BYTES, np.uint8)
        words = np.frombuffer(encode(program), np.uint8)
        image[: words.size] = words
        image[begin : begin + size] = data
        driver.load(image, 0, program)
        return data
