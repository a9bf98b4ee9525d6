"""Aurora behind a link: the IP's settings, the module around it, and its kernel for Vitis.

The module has the IP of AMD and the bridge of `fpgapipe.hw.rtl.link.aurora_bridge`, whose Verilog
comes with it. Source of ports and settings: PG074, and the Aurora kernels of Xilinx/Vitis-Tutorials
and pc2/AuroraFlow, which set the same IP up for these cards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.host.package.tcl import Variable, call, command, properties, script

if TYPE_CHECKING:
    from fpgapipe.host.package.target import LinkEnd, Target
    from fpgapipe.hw.hls_models.spec.aurora import AuroraSpec

_GT_PORTS = {
    "GRX_P": "gt_rxp_in",
    "GRX_N": "gt_rxn_in",
    "GTX_P": "gt_txp_out",
    "GTX_N": "gt_txn_out",
}
_CLOCK_PORTS = {"CLK_P": "gt_refclk_p", "CLK_N": "gt_refclk_n"}


def module_name(link: LinkEnd) -> str:
    """Name of the module around a link's Aurora, which is the name of its kernel as well."""
    return f"fpgapipe_aurora_{link.number}"


def ip_name(link: LinkEnd) -> str:
    """Name of a link's Aurora IP."""
    return f"aurora_64b66b_{link.number}"


def bridge_name(spec: AuroraSpec) -> str:
    """Name of the bridge's module, by its parameters."""
    return f"aurora_bridge_{spec.lanes}x{spec.phy_bytes}"


def ip_settings(link: LinkEnd, init_clock_hz: float) -> dict[str, object]:
    """Settings of the IP: framing without flow control, with the shared logic of a quad in it."""
    port = link.transceiver
    settings: dict[str, object] = {
        "CONFIG.C_AURORA_LANES": port.lanes,
        "CONFIG.C_LINE_RATE": f"{link.lane_rate_gbits_per_s:.10g}",
        "CONFIG.C_REFCLK_FREQUENCY": f"{port.reference_clock_hz / 1e6:.10g}",
        "CONFIG.C_INIT_CLK": f"{init_clock_hz / 1e6:g}",
        "CONFIG.interface_mode": "Framing",
        "CONFIG.flow_mode": "None",
        "CONFIG.crc_mode": "false",
        "CONFIG.drp_mode": "Disabled",
        "CONFIG.C_USE_BYTESWAP": "true",
        "CONFIG.SupportLevel": 1,
    }
    if port.sites:
        settings |= {
            "CONFIG.CHANNEL_ENABLE": " ".join(port.sites),
            "CONFIG.C_START_QUAD": f"Quad_{port.quad}",
            "CONFIG.C_START_LANE": port.sites[0],
            "CONFIG.C_REFCLK_SOURCE": f"MGTREFCLK0_of_Quad_{port.quad}",
        }
    return settings


def ip_commands(link: LinkEnd, init_clock_hz: float) -> list[str]:
    """Tcl commands that make the IP in the current project."""
    name = ip_name(link)
    return [
        command(
            *("create_ip", "-name", "aurora_64b66b", "-vendor", "xilinx.com", "-library", "ip"),
            *("-module_name", name),
        ),
        properties(ip_settings(link, init_clock_hz), call("get_ips", name)),
        command("generate_target", "all", call("get_ips", name)),
    ]


def module(link: LinkEnd) -> str:
    """Return the Verilog of the module around a link's Aurora."""
    spec, lanes = link.bridge, link.transceiver.lanes
    wide, narrow = 8 * spec.phy_bytes, 8 * spec.lane_bytes
    lane = f"[{lanes - 1}:0] "
    return f"""\
// Aurora 64B/66B behind link {link.number} of the core. Made by fpgapipe; do not edit.
`default_nettype none

module {module_name(link)} (
    (* X_INTERFACE_INFO = "xilinx.com:signal:clock:1.0 ap_clk CLK" *)
    (* X_INTERFACE_PARAMETER = "XIL_INTERFACENAME ap_clk, ASSOCIATED_BUSIF \
tx_axis:rx_axis:clock_axis, \
ASSOCIATED_RESET ap_rst_n" *)
    input  wire ap_clk,
    (* X_INTERFACE_INFO = "xilinx.com:signal:reset:1.0 ap_rst_n RST" *)
    (* X_INTERFACE_PARAMETER = "XIL_INTERFACENAME ap_rst_n, POLARITY ACTIVE_LOW" *)
    input  wire ap_rst_n,
    input  wire init_clk,

{_axis("tx_axis", wide, spec.phy_bytes, is_input=True)}
{_axis("rx_axis", wide, spec.phy_bytes, is_input=False)}
{_axis("clock_axis", 8, 0, is_input=False)}
    (* X_INTERFACE_INFO = "xilinx.com:interface:diff_clock:1.0 gt_refclk CLK_P" *)
    input  wire gt_refclk_p,
    (* X_INTERFACE_INFO = "xilinx.com:interface:diff_clock:1.0 gt_refclk CLK_N" *)
    input  wire gt_refclk_n,
    (* X_INTERFACE_INFO = "xilinx.com:interface:gt:1.0 gt_port GRX_P" *)
    input  wire {lane}gt_rxp_in,
    (* X_INTERFACE_INFO = "xilinx.com:interface:gt:1.0 gt_port GRX_N" *)
    input  wire {lane}gt_rxn_in,
    (* X_INTERFACE_INFO = "xilinx.com:interface:gt:1.0 gt_port GTX_P" *)
    output wire {lane}gt_txp_out,
    (* X_INTERFACE_INFO = "xilinx.com:interface:gt:1.0 gt_port GTX_N" *)
    output wire {lane}gt_txn_out
);

    wire user_clk, channel_up, reset_pb, pma_init;
    wire [{narrow - 1}:0] tx_tdata, rx_tdata;
    wire [{spec.lane_bytes - 1}:0] tx_tkeep;
    wire tx_tlast, tx_tvalid, tx_tready, rx_tlast, rx_tvalid;

    {bridge_name(spec)} bridge (
        .clk(ap_clk),
        .rst(~ap_rst_n),
        .user_clk(user_clk),
        .init_clk(init_clk),
        .channel_up(channel_up),
        .reset_pb(reset_pb),
        .pma_init(pma_init),
        .s_axis_tdata(tx_axis_tdata),
        .s_axis_tkeep(tx_axis_tkeep),
        .s_axis_tlast(tx_axis_tlast),
        .s_axis_tvalid(tx_axis_tvalid),
        .s_axis_tready(tx_axis_tready),
        .m_axis_tdata(rx_axis_tdata),
        .m_axis_tkeep(rx_axis_tkeep),
        .m_axis_tlast(rx_axis_tlast),
        .m_axis_tvalid(rx_axis_tvalid),
        .m_axis_tready(rx_axis_tready),
        .m_axis_clock_tdata(clock_axis_tdata),
        .m_axis_clock_tvalid(clock_axis_tvalid),
        .m_axis_clock_tready(clock_axis_tready),
        .tx_tdata(tx_tdata),
        .tx_tkeep(tx_tkeep),
        .tx_tlast(tx_tlast),
        .tx_tvalid(tx_tvalid),
        .tx_tready(tx_tready),
        .rx_tdata(rx_tdata),
        .rx_tlast(rx_tlast),
        .rx_tvalid(rx_tvalid)
    );

    {ip_name(link)} aurora (
        .rxp(gt_rxp_in),
        .rxn(gt_rxn_in),
        .txp(gt_txp_out),
        .txn(gt_txn_out),
        .gt_refclk1_p(gt_refclk_p),
        .gt_refclk1_n(gt_refclk_n),
        .init_clk(init_clk),
        .reset_pb(reset_pb),
        .pma_init(pma_init),
        .power_down(1'b0),
        .loopback(3'b000),
        .gt_rxcdrovrden_in(1'b0),
        .user_clk_out(user_clk),
        .channel_up(channel_up),
        .s_axi_tx_tdata(tx_tdata),
        .s_axi_tx_tkeep(tx_tkeep),
        .s_axi_tx_tlast(tx_tlast),
        .s_axi_tx_tvalid(tx_tvalid),
        .s_axi_tx_tready(tx_tready),
        .m_axi_rx_tdata(rx_tdata),
        .m_axi_rx_tlast(rx_tlast),
        .m_axi_rx_tvalid(rx_tvalid)
    );
endmodule

`default_nettype wire
"""


def _axis(name: str, bits: int, num_bytes: int, *, is_input: bool) -> str:
    """Ports of an AXI4-Stream; without `num_bytes`, of one without frames."""
    to, back = ("input  wire", "output wire") if is_input else ("output wire", "input  wire")
    lines = []
    for signal, way, width in (
        ("tdata", to, f"[{bits - 1}:0] "),
        ("tkeep", to, f"[{num_bytes - 1}:0] "),
        ("tlast", to, ""),
        ("tvalid", to, ""),
        ("tready", back, ""),
    ):
        if signal in ("tkeep", "tlast") and not num_bytes:
            continue
        info = f"xilinx.com:interface:axis:1.0 {name} {signal.upper()}"
        lines.append(f'    (* X_INTERFACE_INFO = "{info}" *)')
        lines.append(f"    {way} {width}{name}_{signal},")
    return "\n".join(lines)


def clock_constraints(link: LinkEnd, clk_hz: float, init_clock_hz: float) -> str:
    """Constraints of the paths between the clocks of a link's module, relative to that module.

    A counter in Gray code crosses within a period of the faster clock, so that at most one of its
    bits is between two values.
    """
    user_hz = link.user_clock_hz
    clocks = {
        "core": ("get_ports ap_clk", clk_hz),
        "user": ("get_pins aurora/user_clk_out", user_hz),
        "init": ("get_ports init_clk", init_clock_hz),
    }
    lines = [f"# Between the clocks of {module_name(link)}."]
    for one, (source, source_hz) in clocks.items():
        for other, (target, target_hz) in clocks.items():
            if one == other:
                continue
            period_ns = 1e9 / max(source_hz, target_hz)
            lines.append(
                f"set_max_delay -datapath_only -from [get_clocks -of_objects [{source}]] "
                f"-to [get_clocks -of_objects [{target}]] {period_ns:.3f}"
            )
    return "\n".join(lines) + "\n"


def kernel_script(target: Target, link: LinkEnd, init_clock_hz: float) -> str:
    """Return the Tcl that packages a link's module as a kernel of Vitis."""
    name = module_name(link)
    core = Variable("$core")
    lines = [
        command("ipx::associate_bus_interfaces", "-busif", each, "-clock", "ap_clk", core)
        for each in ("tx_axis", "rx_axis", "clock_axis")
    ]
    lines.append(
        command("ipx::associate_bus_interfaces", "-clock", "ap_clk", "-reset", "ap_rst_n", core)
    )
    return script(
        f"Packages {name}, the Aurora of link {link.number}, as a kernel. Made by fpgapipe.",
        [
            command(
                "create_project", "-force", name, f"build/{name}", "-part", target.board.part.name
            ),
            *ip_commands(link, init_clock_hz),
            command(
                *("add_files", "-norecurse"),
                call("list", f"{name}.v", f"{bridge_name(link.bridge)}.v"),
            ),
            command(
                *("add_files", "-fileset", "constrs_1", "-norecurse", f"{name}.xdc"),
            ),
            # Its paths are between clocks of the design around it, which have to be there first.
            command("set_property", "PROCESSING_ORDER", "LATE", call("get_files", f"{name}.xdc")),
            command("set_property", "top", name, call("current_fileset")),
            command("update_compile_order", "-fileset", "sources_1"),
        ],
        [
            command(
                *("ipx::package_project", "-root_dir", f"build/{name}_ip", "-vendor", "fpgapipe"),
                *("-library", "kernel", "-taxonomy", "/KernelIP", "-import_files"),
                *("-set_current", "true"),
            ),
            command("set", "core", call("ipx::current_core")),
            command("ipx::infer_bus_interface", "ap_clk", "xilinx.com:signal:clock_rtl:1.0", core),
            command(
                "ipx::infer_bus_interface", "ap_rst_n", "xilinx.com:signal:reset_rtl:1.0", core
            ),
            # The tools take this port for a clock of the kernel; the linker connects it as a port.
            command("ipx::remove_bus_interface", "init_clk", core),
            *lines,
        ],
        _interface("gt_port", "master", "gt", _GT_PORTS),
        _interface("gt_refclk", "slave", "diff_clock", _CLOCK_PORTS),
        [
            command("set_property", "sdx_kernel", "true", core),
            command("set_property", "sdx_kernel_type", "rtl", core),
            command("ipx::update_source_project_archive", "-component", core),
            command("ipx::update_checksums", core),
            command("ipx::save_core", core),
            command(
                *("package_xo", "-force", "-xo_path", f"{name}.xo", "-kernel_name", name),
                *("-ctrl_protocol", "ap_ctrl_none", "-ip_directory", f"build/{name}_ip"),
            ),
        ],
    )


def _interface(name: str, mode: str, kind: str, ports: dict[str, str]) -> list[str]:
    """Commands that define an interface where the tools did not infer it, and its ports."""
    core = Variable("$core")
    bus = Variable("$bus")
    lines = [
        command("set", "bus", call("ipx::add_bus_interface", "-quiet", name, core)),
        command("set_property", "interface_mode", mode, bus),
        command(
            "set_property", "abstraction_type_vlnv", f"xilinx.com:interface:{kind}_rtl:1.0", bus
        ),
        command("set_property", "bus_type_vlnv", f"xilinx.com:interface:{kind}:1.0", bus),
    ]
    for logical, physical in ports.items():
        port = call("ipx::add_port_map", "-quiet", logical, bus)
        lines.append(command("set_property", "physical_name", physical, port))
    return lines
