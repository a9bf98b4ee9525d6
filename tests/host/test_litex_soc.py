"""The SoC of a package for LiteX, simulated with SDRAM and links over pins, reached as boards are.

The serial port is a stream of bytes (LiteX's own model of it), since bits at 3 Mbaud would take 17
cycles each. All else is the SoC that is placed and routed: bridge, bus, LiteDRAM with its PHY,
core, gateware of the pins. Two clocks differ a little, as those of two boards do.
"""

import pytest

pytest.importorskip("litex", reason="LiteX is not installed: pip install 'fpgapipe[litex]'")

import json

import numpy as np
from litex_soc_cases import PORTS, built, cluster_file, compiled, packaged, servers, transports
from package_cases import target_of

from fpgapipe.host.driver.bringup import Bringup
from fpgapipe.host.driver.core_driver import CoreDriver
from fpgapipe.host.driver.devices import Devices
from fpgapipe.host.driver.link_clocks import LinkClock
from fpgapipe.host.driver.transport import Limits


@pytest.mark.sim
@pytest.mark.slow  # the SoCs are compiled, and go at some 100,000 cycles a second
def test_two_socs_are_brought_up(tmp_path):
    """Registers, SDRAM, the core's access to it, and packets over the pins, each way."""
    core = target_of("ulx3s", PORTS).core
    with transports(*compiled(packaged(tmp_path), num_boards=2)) as ways:
        drivers = [CoreDriver(name, core, way) for name, way in zip("ab", ways, strict=True)]
        devices = Devices(drivers, [((0, 0), (1, 0))], limits=Limits(stall=100))
        # The clock of the pins is half of the other board's.
        clocks = {(number, 0): LinkClock(40e6, 20e6) for number in range(2)}
        found = list(Bringup(devices, [1 << 25] * 2, 0.1, clocks).run())
        assert all(each.passed for each in found), found
        assert len(found) == 9
        assert found[-1].check == "link"
        assert "; clocks of the PHYs: 20 MHz at a, 20 MHz at b" in found[-1].detail
        assert all(driver.link_counters(0, ["RX_WORDS"])["RX_WORDS"] for driver in drivers)
        data = np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8)
        ways[0].write((1 << 25) - 5001, data)
        np.testing.assert_array_equal(ways[0].read((1 << 25) - 5001, 5000), data)


def trained(folder, board, package, cli, *, num_boards):
    """Train a step on simulated SoCs, and compare every byte of all memories; gives what ran."""
    program, csr = compiled(package, num_boards=num_boards)
    with servers(program) as places:
        cluster = folder / "lab.yaml"
        cluster.write_text(cluster_file(places, csr, board))
        boards = ("--backend", "litex", "--cluster", cluster)
        steps = ("--steps", 1, "--data", "random", "--no-validation")
        code, out, err = cli("run", folder / "b", *boards, *steps, "--check", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["backend"], found["check"], found["steps"]) == ("litex", "model", 1)
    return found


@pytest.mark.sim
def test_a_step_of_a_soc_equals_the_model(cli, tmp_path):
    """The core that an ULX3S holds, with its vector engine, trains from the SDRAM."""
    _, package = built(tmp_path / "b", "ulx3s", 1, array=(16, 4))
    found = trained(tmp_path, "ulx3s", package, cli, num_boards=1)
    assert found["devices"] == 1


@pytest.mark.sim
@pytest.mark.slow  # the cores with links take minutes to be compiled
def test_a_step_of_two_socs_equals_the_model(cli, tmp_path):
    """A pipeline over two ULX3S: activations and gradients go over the pins."""
    build, package = built(tmp_path / "b", "ulx3s", 2, array=(8, 2))
    assert build.cores[0] == build.cores[1]
    assert all(len(core.links) == 1 for core in build.cores)
    found = trained(tmp_path, "ulx3s", package, cli, num_boards=2)
    assert found["devices"] == 2
