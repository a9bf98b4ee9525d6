"""Several devices and the links between them: bring them up, run a program on each, recover."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fpgapipe.host.driver.core_driver import DeviceFault
from fpgapipe.host.driver.transport import TransportError
from fpgapipe.hw.hls_models.spec.link import LinkState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fpgapipe.host.driver.core_driver import CoreDriver
    from fpgapipe.host.driver.transport import Limits

    End = tuple[int, int]

SLICE_S = 0.25
"""Most seconds of the host from one look at the progress to the next."""

HINTS = {
    LinkState.OFF: "it was not turned on",
    LinkState.HELLO: "it hears nothing from the other end: look at the cable, at the reference "
    "clock of the transceivers, and at whether the other device is programmed",
    LinkState.PEER_RESET: "the other end was reset; reset both",
    LinkState.MISMATCH: "both ends must have the same frames and slots, so load bitstreams of one "
    "build",
}
"""Meaning of each state of a link that does not come up."""


class Devices:
    """Devices joined by links, whatever each is reached by.

    Parameters
    ----------
    drivers : sequence of CoreDriver
    wiring : sequence of pairs of (device, link)
        Pairs of link ends that are joined.
    limits : Limits, optional
        How long to wait for devices; by default those of the first device's transport.
    periods : sequence of float, optional
        Clock period of each device, in periods of the clock in which cycles of all are counted; by
        default, all have that clock.

    Attributes
    ----------
    drivers, wiring, limits
    """

    def __init__(
        self,
        drivers: Sequence[CoreDriver],
        wiring: Sequence[tuple[End, End]],
        *,
        limits: Limits | None = None,
        periods: Sequence[float] | None = None,
    ) -> None:
        self._periods = periods or [1.0] * len(drivers)
        self.drivers, self.wiring = tuple(drivers), tuple(wiring)
        self._way = self.drivers[0].transport  # its time is that of all
        self.limits = limits or self._way.limits
        self._before: list[int] = []
        self._at_first: dict[tuple[End, End], int] = {}

    def close(self) -> None:
        """Release all devices."""
        for driver in self.drivers:
            driver.transport.close()

    @property
    def ends(self) -> list[End]:
        """All ends of links that are joined."""
        return [end for pair in self.wiring for end in pair]

    def counters(self) -> list[dict[str, int]]:
        """Values of all counters of each device, which go on from program to program."""
        return [driver.counters() for driver in self.drivers]

    def links_up(self) -> None:
        """Enable both ends of all links, and wait until the links are up.

        Raises
        ------
        DeviceFault
            If one does not come up in time; the error says how far it came at both ends.
        """
        for number, link in self.ends:
            self.drivers[number].enable_link(link, 1 + 4 * number + link)
        last = self._way.now() + self.limits.link
        for pair in self.wiring:
            while True:
                states = [self.drivers[number].link_state(link) for number, link in pair]
                if states == [LinkState.UP, LinkState.UP]:
                    break
                if LinkState.MISMATCH in states or self._way.now() > last:
                    raise self._down(pair, states)
                time.sleep(self.limits.look_s)
        self._at_first = self._under_way()

    def _down(self, pair: Sequence[End], states: Sequence[LinkState]) -> DeviceFault:
        lines = [
            f"link {link} of {self.drivers[number].name} is {state.name}"
            + (f": {HINTS[state]}" if state in HINTS else "")
            + (", and no clock comes from its PHY" if self._stands(number, link) else "")
            for (number, link), state in zip(pair, states, strict=True)
        ]
        first, second = (self.drivers[number].name for number, _ in pair)
        limit = self.limits.said(self.limits.link)
        return DeviceFault(
            f"the link between {first} and {second} did not come up in {limit}\n" + "\n".join(lines)
        )

    def _stands(self, number: int, link: int) -> bool:
        """Whether the clock of a link's PHY stands still."""
        return self.drivers[number].phy_ticks(link) == 0

    def run(
        self,
        entries: Sequence[int],
        scalars: Sequence[Sequence[int]],
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Run a program on each device; return the cycles of the one that took longest.

        Parameters
        ----------
        entries : sequence of int
            Place of each device's program in its memory.
        scalars : sequence of sequence of int
            Contents of the scalar registers of each device.
        progress : callable, optional
            Function that is called now and then, and at the end, with the cycles so far.

        Raises
        ------
        DeviceFault
            If a device stops with an error, or no device makes progress for too long. The error
            says what each device does; all programs are aborted.
        TransportError
            If a device cannot be reached any more. The error says what the others do.
        """
        for driver, entry, values in zip(self.drivers, entries, scalars, strict=True):
            driver.prepare(entry, values)
        return self._to_the_end(self._start, progress)

    def _start(self) -> None:
        """Start all programs that were prepared."""
        self._before = [driver.read_pair("CYCLES") for driver in self.drivers]
        for driver in self.drivers:
            driver.start()

    def _to_the_end(
        self, begin: Callable[[], object], progress: Callable[[int], object] | None
    ) -> int:
        """Let programs begin, and wait for their ends, as `run` does; return their cycles."""
        try:
            begin()
            self._wait(lambda: progress and progress(self._cycles()))
            return self._cycles()
        except (DeviceFault, TransportError) as fault:
            states = self.states()
            self.abort()
            raise type(fault)(f"{fault}\n{states}") from None
        except BaseException as error:
            self._broken_off(error)
            raise

    def _broken_off(self, error: BaseException) -> None:
        """Do what is to be done with programs whose run an error has broken off: abort them."""
        self.abort()

    def _cycles(self) -> int:
        """Cycles of the programs so far."""
        found = zip(self.drivers, self._before, self._periods, strict=True)
        return max(
            round((driver.read_pair("CYCLES") - begin) * period) for driver, begin, period in found
        )

    def _wait(self, on_slice: Callable[[], object]) -> None:
        """Wait until all programs have ended, as long as there is progress."""
        stall = self.limits.stall
        moved = self._way.now()
        while True:
            is_over = self._way.wait(self._over, min(SLICE_S, stall))
            on_slice()
            if is_over:
                return
            moved = max(moved, *(driver.progressed() for driver in self.drivers))
            if self._way.now() - moved >= stall:
                what = f"no device has made progress for {self.limits.said(stall)}"
                raise DeviceFault("\n".join([what, *self._lost()]))

    def _lost(self) -> list[str]:
        """Links on which frames have not arrived since they came up.

        After a stall, all frames have arrived that ever will.
        """
        return [
            f"frames from {self.drivers[one].name} (link {link}) that have not arrived at "
            f"{self.drivers[other].name}: {lost}; look at the cable, and at whether both devices "
            "are powered and programmed"
            for ((one, link), (other, _)), under_way in self._under_way().items()
            if (lost := under_way - self._at_first.get(((one, link), (other, _)), under_way)) > 0
        ]

    def _under_way(self) -> dict[tuple[End, End], int]:
        """Frames that were sent and have not come, for both ways of each link that counts them."""
        found = {}
        for pair in self.wiring:
            for (one, link), (other, back) in (pair, pair[::-1]):
                names = f"LINK{link}_TX_FRAMES", f"LINK{link}_REPLAYS", f"LINK{back}_RX_FRAMES"
                counted = (
                    self.drivers[one].registers.counters,
                    self.drivers[other].registers.counters,
                )
                if names[0] in counted[0] and names[2] in counted[1]:
                    sent = self.drivers[one].read_pairs(names[:2])
                    came = self.drivers[other].read_pairs(names[2:])
                    number = sent[names[0]] - sent[names[1]] - came[names[2]]
                    found[(one, link), (other, back)] = number
        return found

    def _over(self) -> bool:
        """Whether all programs have ended; raises as soon as one has not ended well."""
        ended = [driver.has_ended() for driver in self.drivers]  # also those behind one that runs
        return all(ended)

    def states(self) -> str:
        """State of each device at this moment, in words."""
        lines = []
        for driver in self.drivers:
            lines.append(f"{driver.name}:")
            try:
                lines += [f"  {line}" for line in driver.state()]
            except Exception as error:  # one device that is gone must not hide the others
                lines.append(f"  cannot be read: {error}")
        return "\n".join(lines)

    def abort(self) -> None:
        """End all programs, and begin new sessions of all links, which may hold parts of packets.

        Devices that cannot be reached are left as they are.
        """
        for driver in self.drivers:
            try:
                driver.abort()
            except Exception:  # the error that led here is the one to report
                continue
        for number, link in self.ends:
            try:
                self.drivers[number].command(f"LINK{link}_CONTROL", "reset")
            except Exception:
                continue
