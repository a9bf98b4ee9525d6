"""The SoC of a package for LiteX, simulated with SDRAM and links over pins, reached as boards are.

The serial port is a stream of bytes (LiteX's own model of it), since bits at 3 Mbaud would take 17
cycles each. All else is the SoC that is placed and routed: bridge, bus, LiteDRAM with its PHY,
core, gateware of the pins. Two clocks differ a little, as those of two boards do.
"""

import pytest

pytest.importorskip("litex", reason="LiteX is not installed: pip install 'fpgapipe[litex]'")

import numpy as np
from cases.package_cases import target_of
from litex_soc_cases import PORTS, compiled, transports

from fpgapipe.host.driver.bringup import Bringup
from fpgapipe.host.driver.core_driver import CoreDriver
from fpgapipe.host.driver.devices import Devices


@pytest.mark.sim
@pytest.mark.slow  # the SoCs are compiled, and go at some 100,000 cycles a second
def test_two_socs_are_brought_up(tmp_path):
    """Registers, SDRAM, the core's access to it, and packets over the pins, each way."""
    core = target_of("ulx3s", PORTS).core
    with transports(*compiled(tmp_path)) as ways:
        drivers = [CoreDriver(name, core, way) for name, way in zip("ab", ways, strict=True)]
        devices = Devices(drivers, [((0, 0), (1, 0))], stall_s=100)
        found = list(Bringup(devices, [1 << 25] * 2, watch_s=0.1).run())
        assert all(each.passed for each in found), found
        assert len(found) == 9
        assert found[-1].check == "link"
        assert all(driver.link_counters(0, ["RX_WORDS"])["RX_WORDS"] for driver in drivers)
        data = np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8)
        ways[0].write((1 << 25) - 5001, data)
        np.testing.assert_array_equal(ways[0].read((1 << 25) - 5001, 5000), data)
