"""The packaged module around Aurora, as text: two of them exchange frames over their lanes."""

import dataclasses

import pytest
from cases.aurora_stand_in import pair, stand_in
from cases.package_cases import target_of

from fpgapipe.host.package.aurora import ip_name, module, module_name
from fpgapipe.host.package.bridge import bridge_verilog
from fpgapipe.hw.hls_models.spec.aurora import AuroraSpec
from fpgapipe.sim_tb.drivers.simulate import SimulationError, simulate_verilog

pytestmark = pytest.mark.sim


def design(lanes, phy_bytes):
    """Verilog of two modules for a link of some lanes, with the stand-in for the IP."""
    link = target_of("zcu102", ("sfp/2",)).links[0]
    spec = AuroraSpec(phy_bytes, lanes, reset_cycles=20)
    transceiver = link.transceiver.model_copy(update={"lanes": lanes})
    link = dataclasses.replace(link, transceiver=transceiver, bridge=spec)
    parts = [
        pair(module_name(link), spec),
        module(link),
        bridge_verilog(spec),
        stand_in(ip_name(link), lanes),
    ]
    return "\n".join(parts)


@pytest.mark.parametrize(("lanes", "phy_bytes"), [(1, 8), (4, 64), (4, 32)])
def test_frames_pass_both_ways(lanes, phy_bytes, tmp_path):
    done = simulate_verilog(design(lanes, phy_bytes), "phy.tb_aurora_pair", tmp_path)
    assert done.tests == ("frames_pass_both_ways",)


def test_a_wrong_connection_is_seen(tmp_path):
    verilog = design(1, 8).replace(".rx_tlast(rx_tlast)", ".rx_tlast(rx_tvalid)")
    with pytest.raises(SimulationError):
        simulate_verilog(verilog, "phy.tb_aurora_pair", tmp_path)
