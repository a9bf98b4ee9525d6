"""Ports and interfaces of modules and IPs in block designs, for checks of packages.

Those of modules are read from their Verilog, as the tools infer them. Those of IPs are written down
here from their product guides: PG195 (xdma), PG150 (ddr4), PG065 (clk_wiz), PG164 (proc_sys_reset),
PG247 (smartconnect), PG201 (zynq_ultra_ps_e), PG082 (processing_system7), UG994 (xlconstant,
util_ds_buf).
"""

import re
from dataclasses import dataclass, field


@dataclass
class Cell:
    """A cell: its interfaces with mode and type, and its pins with direction."""

    interfaces: dict[str, tuple[str, str]]
    pins: dict[str, str]
    needed: set[str] = field(default_factory=set)
    settings: set[str] = field(default_factory=set)
    clocks: dict[str, set[str]] = field(default_factory=dict)


_INFO = re.compile(
    r'\(\* X_INTERFACE_INFO = "xilinx\.com:(signal|interface):(\w+):1\.0 (\w+) (\w+)" \*\)'
)
_PARAMETER = re.compile(r'\(\* X_INTERFACE_PARAMETER = "XIL_INTERFACENAME (\w+), ([^"]*)" \*\)')
_PORT = re.compile(r"^\s*(input|output)\s+wire\s+(?:\[(\d+):0\]\s+)?(\w+)[,\n]")

# Signals that a master drives; where it drives the signal, the module's port is an output.
_FROM_MASTER = {
    "aximm": {"ARADDR", "AWADDR", "WDATA", "ARVALID", "AWVALID", "WVALID", "BREADY", "RREADY"},
    "axis": {"TDATA", "TVALID", "TLAST", "TKEEP"},
    "gt": {"GTX_P", "GTX_N"},
    "diff_clock": {"CLK_P", "CLK_N"},
}
_TO_MASTER = {
    "aximm": {"ARREADY", "AWREADY", "WREADY", "RDATA", "RVALID", "BVALID"},
    "axis": {"TREADY"},
    "gt": {"GRX_P", "GRX_N"},
    "diff_clock": set(),
}
_SIGNALS = {
    "axis": {"TDATA", "TKEEP", "TLAST", "TVALID", "TREADY"},
    "unframed axis": {"TDATA", "TVALID", "TREADY"},
    "gt": {"GRX_P", "GRX_N", "GTX_P", "GTX_N"},
    "diff_clock": {"CLK_P", "CLK_N"},
}


CLOCKED = ("aximm", "axis", "unframed axis")
"""Kinds of interfaces that have a clock. Streams with frames and without are not joined."""


def module_of(verilog):
    """Name of the first module of a text, its cell, and the widths of its ports."""
    name = re.search(r"^module (\w+) \(", verilog, re.MULTILINE)[1]
    header = verilog[: verilog.index(");\n")]
    interfaces, pins, signals, modes, widths = {}, {}, {}, {}, {}
    parameters, info = {}, None
    for line in header.splitlines():
        if found := _INFO.search(line):
            info = found.groups()
        if found := _PARAMETER.search(line):
            pairs = [each.strip().partition(" ") for each in found[2].split(",")]
            parameters[found[1]] = {key: value for key, _, value in pairs}
        found = _PORT.match(line + "\n")
        if not found:
            continue
        direction, high, port = found.groups()
        widths[port] = int(high or 0) + 1
        if info and info[0] == "interface":
            _, kind, bus, signal = info
            signals.setdefault((bus, kind), set()).add(signal)
            if signal in _FROM_MASTER[kind]:
                modes.setdefault(bus, set()).add("Master" if direction == "output" else "Slave")
            if signal in _TO_MASTER[kind]:
                modes.setdefault(bus, set()).add("Master" if direction == "input" else "Slave")
        else:
            pins[port] = "I" if direction == "input" else "O"
        info = None
    for (bus, kind), found in signals.items():
        assert len(modes[bus]) == 1, f"{name}: {bus} is master and slave"
        if kind == "axis" and not found & {"TKEEP", "TLAST"}:
            kind = "unframed axis"
        assert found >= _SIGNALS.get(kind, set()), f"{name}: {bus} lacks signals"
        interfaces[bus] = (next(iter(modes[bus])), kind)
    clocks = {
        clock: set(values["ASSOCIATED_BUSIF"].split(":"))
        for clock, values in parameters.items()
        if "ASSOCIATED_BUSIF" in values
    }
    for clock, buses in clocks.items():
        assert buses == {bus for bus, (_, kind) in interfaces.items() if kind in CLOCKED}
        assert parameters[clock]["ASSOCIATED_RESET"] in pins
    needed = {pin for pin, direction in pins.items() if direction == "I"}
    return name, Cell(interfaces, pins, needed, set(), clocks), widths


def smartconnect(settings):
    """A SmartConnect with as many ports and clocks as it is set to."""
    slaves, masters = int(settings.get("NUM_SI", 1)), int(settings.get("NUM_MI", 1))
    clocks = ["aclk", *(f"aclk{index}" for index in range(1, int(settings.get("NUM_CLKS", 1))))]
    return Cell(
        {f"S{index:02d}_AXI": ("Slave", "aximm") for index in range(slaves)}
        | {f"M{index:02d}_AXI": ("Master", "aximm") for index in range(masters)},
        {**dict.fromkeys(clocks, "I"), "aresetn": "I"},
        {*clocks, "aresetn"},
        {"NUM_SI", "NUM_MI", "NUM_CLKS"},
    )


def ip_of(kind, settings):
    """The cell of an IP with its settings."""
    if kind == "smartconnect":
        return smartconnect(settings)
    if kind not in IPS:
        raise AssertionError(f"no IP named {kind}")
    return IPS[kind]


IPS = {
    "proc_sys_reset": Cell(
        {},
        {
            **dict.fromkeys(
                ("slowest_sync_clk", "ext_reset_in", "aux_reset_in", "dcm_locked"), "I"
            ),
            **dict.fromkeys(("peripheral_aresetn", "interconnect_aresetn", "mb_reset"), "O"),
        },
        {"slowest_sync_clk", "ext_reset_in"},
        {"C_EXT_RESET_HIGH"},
    ),
    "clk_wiz": Cell(
        {},
        {"clk_in1": "I", "clk_out1": "O", "locked": "O"},
        {"clk_in1"},
        {
            "PRIM_SOURCE",
            "PRIM_IN_FREQ",
            "CLKOUT1_REQUESTED_OUT_FREQ",
            "USE_RESET",
            "USE_LOCKED",
        },
    ),
    "xlconstant": Cell({}, {"dout": "O"}, set(), {"CONST_WIDTH", "CONST_VAL"}),
    "util_ds_buf": Cell(
        {"CLK_IN_D": ("Slave", "diff_clock")},
        {"IBUF_OUT": "O", "IBUF_DS_ODIV2": "O"},
        set(),
        {"C_BUF_TYPE", "DIFF_CLK_IN_BOARD_INTERFACE", "USE_BOARD_FLOW"},
    ),
    "xdma": Cell(
        {
            "pcie_mgt": ("Master", "pcie_7x_mgt"),
            "M_AXI": ("Master", "aximm"),
            "M_AXI_LITE": ("Master", "aximm"),
        },
        {
            **dict.fromkeys(("sys_clk", "sys_clk_gt", "sys_rst_n", "usr_irq_req"), "I"),
            **dict.fromkeys(("axi_aclk", "axi_aresetn", "usr_irq_ack"), "O"),
        },
        {"sys_clk", "sys_clk_gt", "sys_rst_n", "usr_irq_req"},
        {
            "PCIE_BOARD_INTERFACE",
            "SYS_RST_N_BOARD_INTERFACE",
            "xdma_axi_intf_mm",
            "axilite_master_en",
            "axilite_master_size",
            "axilite_master_scale",
            "xdma_num_usr_irq",
        },
    ),
    "ddr4": Cell(
        {
            "C0_SYS_CLK": ("Slave", "diff_clock"),
            "C0_DDR4": ("Master", "ddr4"),
            "C0_DDR4_S_AXI": ("Slave", "aximm"),
        },
        {
            **dict.fromkeys(("sys_rst", "c0_ddr4_aresetn"), "I"),
            **dict.fromkeys(("c0_ddr4_ui_clk", "c0_ddr4_ui_clk_sync_rst", "addn_ui_clkout1"), "O"),
        },
        {"sys_rst", "c0_ddr4_aresetn"},
        {
            "C0_CLOCK_BOARD_INTERFACE",
            "C0_DDR4_BOARD_INTERFACE",
            "RESET_BOARD_INTERFACE",
            "ADDN_UI_CLKOUT1_FREQ_HZ",
        },
    ),
    "zynq_ultra_ps_e": Cell(
        {"M_AXI_HPM0_FPD": ("Master", "aximm"), "S_AXI_HP0_FPD": ("Slave", "aximm")},
        {
            **dict.fromkeys(("maxihpm0_fpd_aclk", "saxihp0_fpd_aclk", "pl_ps_irq0"), "I"),
            **dict.fromkeys(("pl_clk0", "pl_clk1", "pl_resetn0"), "O"),
        },
        {"maxihpm0_fpd_aclk", "saxihp0_fpd_aclk", "pl_ps_irq0"},
        {
            "PSU__USE__M_AXI_GP0",
            "PSU__USE__M_AXI_GP1",
            "PSU__USE__M_AXI_GP2",
            "PSU__USE__S_AXI_GP2",
            "PSU__SAXIGP2__DATA_WIDTH",
            "PSU__USE__IRQ0",
            "PSU__FPGA_PL0_ENABLE",
            "PSU__FPGA_PL1_ENABLE",
            "PSU__CRL_APB__PL0_REF_CTRL__FREQMHZ",
            "PSU__CRL_APB__PL1_REF_CTRL__FREQMHZ",
        },
    ),
    "processing_system7": Cell(
        {"M_AXI_GP0": ("Master", "aximm"), "S_AXI_HP0": ("Slave", "aximm")},
        {
            **dict.fromkeys(("M_AXI_GP0_ACLK", "S_AXI_HP0_ACLK", "IRQ_F2P"), "I"),
            **dict.fromkeys(("FCLK_CLK0", "FCLK_RESET0_N"), "O"),
        },
        {"M_AXI_GP0_ACLK", "S_AXI_HP0_ACLK", "IRQ_F2P"},
        {
            "PCW_USE_M_AXI_GP0",
            "PCW_USE_S_AXI_HP0",
            "PCW_S_AXI_HP0_DATA_WIDTH",
            "PCW_USE_FABRIC_INTERRUPT",
            "PCW_IRQ_F2P_INTR",
            "PCW_FPGA0_PERIPHERAL_FREQMHZ",
        },
    ),
}

# For each interface of an IP, the pin that is its clock.
CLOCK_OF = {
    ("xdma", "M_AXI"): "axi_aclk",
    ("xdma", "M_AXI_LITE"): "axi_aclk",
    ("ddr4", "C0_DDR4_S_AXI"): "c0_ddr4_ui_clk",
    ("zynq_ultra_ps_e", "M_AXI_HPM0_FPD"): "maxihpm0_fpd_aclk",
    ("zynq_ultra_ps_e", "S_AXI_HP0_FPD"): "saxihp0_fpd_aclk",
    ("processing_system7", "M_AXI_GP0"): "M_AXI_GP0_ACLK",
    ("processing_system7", "S_AXI_HP0"): "S_AXI_HP0_ACLK",
}

SEGMENTS = {
    "zynq_ultra_ps_e": {
        "SAXIGP2/HP0_DDR_LOW": "S_AXI_HP0_FPD",
        "SAXIGP2/HP0_DDR_HIGH": "S_AXI_HP0_FPD",
    },
    "processing_system7": {"S_AXI_HP0/HP0_DDR_LOWOCM": "S_AXI_HP0"},
    "ddr4": {"C0_DDR4_MEMORY_MAP/C0_DDR4_ADDRESS_BLOCK": "C0_DDR4_S_AXI"},
}
SPACES = {
    "zynq_ultra_ps_e": {"Data": "M_AXI_HPM0_FPD"},
    "processing_system7": {"Data": "M_AXI_GP0"},
    "xdma": {"M_AXI": "M_AXI", "M_AXI_LITE": "M_AXI_LITE"},
}
