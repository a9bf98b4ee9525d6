"""The checks of devices one by one, on models and with faults."""

import re

import numpy as np
import pytest
from step_cases import every_operator
from test_backends import pipeline_of
from test_pipeline import SAMPLES
from transport_cases import Faulty

from fpgapipe.host.driver.bringup import CAME, PACKET, TRIED_BYTES, Bringup
from fpgapipe.host.driver.core_driver import CoreDriver
from fpgapipe.host.driver.devices import Devices
from fpgapipe.host.driver.link_clocks import LinkClock
from fpgapipe.host.driver.transport import Limits
from fpgapipe.host.transports.modelled import ModelledCluster, ModelledTransport
from fpgapipe.hw.hls_models.model.registers import RegisterMap


@pytest.fixture(scope="module")
def pipeline():
    return pipeline_of(every_operator(SAMPLES), 2, "gpipe")


def checked(pipeline, size=1 << 20, watch_s=0.01, clocks=None, **faults):
    """Results of all checks; the second device has the faults."""
    cores = [part.core for part in pipeline.parts]
    cluster = ModelledCluster(cores, [size + 8192] * 2, pipeline.wiring)
    ways = [ModelledTransport(cluster, 0, 4096), Faulty(ModelledTransport(cluster, 1), **faults)]
    drivers = [
        CoreDriver(name, core, way)
        for name, core, way in zip(("front", "back"), cores, ways, strict=True)
    ]
    devices = Devices(drivers, pipeline.wiring, limits=Limits(link=0.2, stall=0.2))
    return list(Bringup(devices, [size, size], watch_s, clocks).run())


def test_good_devices_pass_all_checks(pipeline):
    found = checked(pipeline)
    assert [(each.check, each.device) for each in found] == [
        *(
            (check, device)
            for check in ("identity", "registers", "memory", "core and memory")
            for device in ("front", "back")
        ),
        ("link", "front and back"),
    ]
    assert all(each.passed for each in found), found
    went = re.fullmatch(
        r"up; ([\d,]+) bytes went each way in [\d.]+ s, and no frame was damaged or sent again",
        found[-1].detail,
    )
    assert int(went[1].replace(",", "")) % PACKET == 0
    assert "of 1,048,576 bytes from 0x1000 on keep what is written" in found[4].detail


@pytest.mark.parametrize("size", [1, TRIED_BYTES - 1, TRIED_BYTES])
def test_little_memory(size, pipeline):
    assert all(each.passed for each in checked(pipeline, max(size, TRIED_BYTES)))


def failing(pipeline, **faults):
    found = checked(pipeline, **faults)
    wrong = [each for each in found if not each.passed]
    assert [each.device for each in found if each.check == "core and memory"][:1] == ["front"]
    return wrong


def test_a_device_that_fails_is_left_out_of_the_rest(pipeline):
    first, last = failing(pipeline, read=lambda offset, value: 0)
    assert (first.check, first.device) == ("identity", "back")
    assert first.detail.startswith("its registers read as 0x00000000, so no core answers there")
    assert (last.check, last.detail) == ("links", "not tried, since a device failed")


def test_a_core_that_sees_other_memory_than_the_host(pipeline):
    """The host's writes beyond 48 KiB go to another place, and so do its reads."""

    class Shifted(Faulty):
        def places(self, address, size):
            """First address of all that is meant, its bytes, and the place of each byte in them."""
            at = np.arange(address, address + size)
            at = np.where(at >= 3 << 14, at ^ 0x10, at)
            return int(at.min()), int(np.ptp(at)) + 1, at - at.min()

        def write(self, address, data):
            begin, size, at = self.places(address, data.size)
            whole = self.inner.read(begin, size)
            whole[at] = data
            self.inner.write(begin, whole)

        def read(self, address, size_bytes):
            begin, size, at = self.places(address, size_bytes)
            return self.inner.read(begin, size)[at]

    cores = [part.core for part in pipeline.parts]
    cluster = ModelledCluster(cores, [1 << 20] * 2, pipeline.wiring)
    way = Shifted(ModelledTransport(cluster, 0))
    devices = Devices([CoreDriver("card", cores[0], way)], [])
    found = list(Bringup(devices, [1 << 19]).run())
    assert [each.check for each in found if not each.passed] == ["core and memory"]
    assert "core and host do not see the same memory" in found[-1].detail


def test_a_link_with_errors(pipeline):
    registers = RegisterMap(pipeline.parts[1].core)
    offset = registers.offset("LINK0_CRC_ERRORS_LO")
    errors = iter(range(10, 1000, 3))
    (wrong,) = failing(pipeline, read=lambda at, value: next(errors) if at == offset else value)
    assert wrong.check == "link"
    assert re.search(r"each way in [\d.]+ s there were 3 CRC_ERRORS at back", wrong.detail)


REFERENCES_HZ = {161.1328125e6: 402.83203125e6, 156.25e6: 390.625e6}
"""User clocks of four lanes of Aurora with the reference clocks that cards have."""


def with_ticks(pipeline, ticks, phy_hz=402.83203125e6, known=1):
    """Results of the checks of devices at 300 MHz, the second of which counts some ticks."""
    register = RegisterMap(pipeline.parts[1].core)["LINK0_CLOCK"]
    value = ticks | known << register.field("known").low
    return checked(
        pipeline,
        clocks={(0, 0): LinkClock(300e6, 300e6), (1, 0): LinkClock(300e6, phy_hz)},
        read=lambda at, read: value if at == register.offset else read,
    )


def test_the_clocks_of_links():
    """1,375 ticks in 16,384 cycles at 300 MHz are 402.83 MHz; so are 2 % more and less."""
    for reference_hz, phy_hz in REFERENCES_HZ.items():
        clock = LinkClock(300e6, phy_hz)
        ticks = 16384 * phy_hz / 300e6 / 16
        for share in (0.985, 1, 1.015):
            assert clock.fault(round(ticks * share)) is None
        for share in (0.5, 0.97, 1.03, 2, 8):
            assert "should have" in clock.fault(round(ticks * share)), reference_hz
        assert clock.fault(0).startswith("no clock comes from its PHY")
    assert LinkClock(300e6, None).fault(5) is None
    assert LinkClock(300e6, None).fault(0) is not None


def test_clocks_are_named(pipeline):
    last = with_ticks(pipeline, 1375)[-1]
    assert last.passed
    assert last.detail.endswith("; clocks of the PHYs: 300 MHz at front, 402.8 MHz at back")
    assert "402.8 MHz at back" in with_ticks(pipeline, 1375, None)[-1].detail


@pytest.mark.parametrize(
    ("ticks", "message"),
    [
        (1333, "its PHY's clock has 390.5 MHz, if the core runs at 300 MHz, and should have 402.8"),
        (0, "no clock comes from its PHY: transceivers need their reference clock, plain pins"),
    ],
)
def test_a_wrong_reference_clock(pipeline, ticks, message):
    (wrong,) = [each for each in with_ticks(pipeline, ticks) if not each.passed]
    assert wrong.check == "link"
    assert wrong.detail.startswith(f"the link works, but link 0 of back: {message}")


def test_a_clock_that_is_never_counted(pipeline):
    (wrong,) = [each for each in with_ticks(pipeline, 0, known=0) if not each.passed]
    assert "link 0 of back: the core has not counted the clock of its PHY" in wrong.detail


def test_a_wrong_reference_clock_keeps_a_link_down(pipeline):
    """The other end hears nothing then; the clock says why."""
    registers = RegisterMap(pipeline.parts[1].core)
    clock, enable = registers["LINK0_CLOCK"], registers.offset("LINK0_ENABLE")
    value = 1333 | clock.field("known").mask
    (wrong,) = failing(
        pipeline,
        clocks={(1, 0): LinkClock(300e6, 402.83203125e6)},
        read=lambda at, read: value if at == clock.offset else read,
        write=lambda at, written: None if at == enable else written,
    )
    assert wrong.detail.startswith("the link between front and back did not come up in 0.2 s")
    assert "link 0 of back: its PHY's clock has 390.5 MHz" in wrong.detail.splitlines()[-1]


def test_a_link_that_no_clock_reaches(pipeline):
    registers = RegisterMap(pipeline.parts[1].core)
    clock, enable = registers["LINK0_CLOCK"], registers.offset("LINK0_ENABLE")
    (wrong,) = failing(
        pipeline,
        read=lambda at, read: clock.field("known").mask if at == clock.offset else read,
        write=lambda at, written: None if at == enable else written,
    )
    assert wrong.detail.splitlines()[-1].endswith(", and no clock comes from its PHY")


def test_a_link_with_errors_under_load_alone(pipeline):
    """Its counter rises with each packet, and stands still while nothing is sent."""
    registers = RegisterMap(pipeline.parts[1].core)
    start = registers.offset("CONTROL"), registers["CONTROL"].field("start").mask
    offset = registers.offset("LINK0_REPLAYS_LO")
    starts = []

    def write(at, value):
        starts.extend([at] * ((at, value) == start))
        return value

    (wrong,) = failing(
        pipeline, write=write, read=lambda at, value: len(starts) if at == offset else value
    )
    assert wrong.check == "link"
    assert re.search(rf"there were {len(starts) - 1} REPLAYS at back", wrong.detail)


def test_a_packet_that_comes_damaged(pipeline):
    """The third one has a wrong byte that its CRC did not show."""
    sent = []

    def load(address, data):
        if address == CAME and data.size == PACKET:
            sent.append(address)
            if len(sent) in (5, 6):  # each is read twice
                data[77] ^= 1
        return data

    (wrong,) = failing(pipeline, watch_s=30, load=load)
    assert (wrong.check, len(sent)) == ("link", 6)
    assert "a packet of 16,384 bytes came with other bytes than were sent" in wrong.detail


def test_a_link_that_loses_a_packet(pipeline):
    """The second device never starts, so the first one waits for its packet."""
    registers = RegisterMap(pipeline.parts[1].core)
    start = registers["CONTROL"].field("start").mask
    control = registers.offset("CONTROL")
    starts = []

    def loses(at, value):
        if (at, value) == (control, start):
            starts.append(at)
            return value if len(starts) == 1 else None
        return value

    (wrong,) = failing(pipeline, write=loses)
    assert (wrong.check, wrong.device) == ("link", "front and back")
    assert "no program runs and none has ended" in wrong.detail
