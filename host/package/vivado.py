"""Packages for Vivado: a block design with PCIe (XDMA) and DDR4 around the core.

Sources: PG195 (DMA for PCI Express), PG150 (memory interface), PG247 (SmartConnect).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.host.package.aurora_cells import (
    add_auroras,
    aurora_files,
    aurora_project,
    aurora_readme,
    aurora_sources,
)
from fpgapipe.host.package.block_design import (
    TIMING_CHECK,
    TIMING_CHECK_TEXT,
    BlockDesign,
    bitstream_commands,
    project_commands,
)
from fpgapipe.host.package.flow import PHY_PROTOCOL, Flow, vendor_tools
from fpgapipe.host.package.target import INIT_CLOCK_HZ
from fpgapipe.host.package.tcl import script
from fpgapipe.host.package.wrapper import CONTROL, CORE, MEMORY, wrapper
from fpgapipe.hw.hls_models.model.registers import ADDRESS_BITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fpgapipe.boards.packaging import Vivado
    from fpgapipe.host.package.target import Target

BITSTREAM = "fpgapipe"
"""Name of the bitstream."""

SYNCHRONIZER = "fpgapipe_irq_sync"

_SYNCHRONIZER = f"""\
// Brings the core's interrupt to the clock of PCIe. Made by fpgapipe; do not edit.
`default_nettype none

module {SYNCHRONIZER} (
    (* X_INTERFACE_INFO = "xilinx.com:signal:clock:1.0 clk CLK" *)
    input  wire clk,
    input  wire i,
    output wire o
);
    (* ASYNC_REG = "TRUE" *) reg [1:0] stages;
    initial stages = 2'b00;
    always @(posedge clk) stages <= {{stages[0], i}};
    assign o = stages[1];
endmodule

`default_nettype wire
"""


def files(target: Target) -> Iterator[tuple[str, str]]:
    """Names and texts of the files of a device, but for its README."""
    values = target.packaging.vivado
    assert values is not None, "Flow.check refuses others"
    yield f"{CORE}.v", wrapper(target.core, target.verilog)
    yield f"{SYNCHRONIZER}.v", _SYNCHRONIZER
    yield (
        f"{SYNCHRONIZER}.xdc",
        (
            "# The first stage takes a level from another clock.\n"
            "set_false_path -to [get_pins {stages_reg[0]/D}]\n"
        ),
    )
    yield from aurora_files(target)
    yield "build.tcl", build_script(target, values)
    yield TIMING_CHECK, TIMING_CHECK_TEXT
    yield "Makefile", makefile(target)


def build_script(target: Target, values: Vivado) -> str:
    """Return the Tcl that makes the bitstream."""
    sources = [
        f"../../../{target.core_file}",
        f"{CORE}.v",
        f"{SYNCHRONIZER}.v",
        *aurora_sources(target),
    ]
    return script(
        f"Builds the bitstream {BITSTREAM} for {target.device}. Made by fpgapipe; do not edit.",
        project_commands(target.board.part.name, values.board_part, sources),
        [
            f"add_files -fileset constrs_1 -norecurse {SYNCHRONIZER}.xdc",
            f"set_property SCOPED_TO_REF {SYNCHRONIZER} [get_files {SYNCHRONIZER}.xdc]",
        ],
        aurora_project(target),
        block_design(target, values).finish(),
        bitstream_commands(BITSTREAM, exports=False),
    )


def block_design(target: Target, values: Vivado) -> BlockDesign:
    """Return the design: XDMA and the core share one DDR4; XDMA reaches the core's registers."""
    design = BlockDesign()
    design.comment("PCIe: memory by DMA, and the registers of the core behind the first BAR.")
    design.interface_port(values.pcie, "Master", "pcie_7x_mgt")
    design.interface_port(values.pcie_clock, "Slave", "diff_clock", {"FREQ_HZ": 100_000_000})
    design.port(values.pcie_reset, "I", "rst", {"POLARITY": "ACTIVE_LOW"})
    design.ip(
        "pcie_buffer",
        "util_ds_buf",
        {
            "C_BUF_TYPE": "IBUFDSGTE",
            "DIFF_CLK_IN_BOARD_INTERFACE": values.pcie_clock,
            "USE_BOARD_FLOW": "true",
        },
    )
    design.ip(
        "xdma",
        "xdma",
        {
            "PCIE_BOARD_INTERFACE": values.pcie,
            "SYS_RST_N_BOARD_INTERFACE": values.pcie_reset,
            "xdma_axi_intf_mm": "AXI_Memory_Mapped",
            "axilite_master_en": "true",
            "axilite_master_size": 1,
            "axilite_master_scale": "Megabytes",
            "xdma_num_usr_irq": 1,
        },
    )
    design.join(values.pcie_clock, "pcie_buffer/CLK_IN_D")
    design.join("xdma/pcie_mgt", values.pcie)
    design.wire("pcie_buffer/IBUF_DS_ODIV2", "xdma/sys_clk")
    design.wire("pcie_buffer/IBUF_OUT", "xdma/sys_clk_gt")
    design.wire(values.pcie_reset, "xdma/sys_rst_n")

    design.comment("DDR4; its controller also makes the free-running clock.")
    design.interface_port(values.memory_interface, "Master", "ddr4")
    design.interface_port(
        values.memory_clock, "Slave", "diff_clock", {"FREQ_HZ": round(values.memory_clock_hz)}
    )
    design.port(values.reset, "I", "rst", {"POLARITY": "ACTIVE_HIGH"})
    design.ip(
        "ddr4",
        "ddr4",
        {
            "C0_CLOCK_BOARD_INTERFACE": values.memory_clock,
            "C0_DDR4_BOARD_INTERFACE": values.memory_interface,
            "RESET_BOARD_INTERFACE": values.reset,
            "ADDN_UI_CLKOUT1_FREQ_HZ": f"{INIT_CLOCK_HZ / 1e6:g}",
        },
    )
    design.ip("ddr4_reset", "proc_sys_reset", {"C_EXT_RESET_HIGH": 1})
    design.join(values.memory_clock, "ddr4/C0_SYS_CLK")
    design.join("ddr4/C0_DDR4", values.memory_interface)
    design.wire(values.reset, "ddr4/sys_rst")
    design.wire("ddr4/c0_ddr4_ui_clk", "ddr4_reset/slowest_sync_clk")
    design.wire("ddr4/c0_ddr4_ui_clk_sync_rst", "ddr4_reset/ext_reset_in")
    design.wire("ddr4_reset/peripheral_aresetn", "ddr4/c0_ddr4_aresetn")

    design.comment("The core with its clock and reset.")
    design.ip(
        "core_clock",
        "clk_wiz",
        {
            "PRIM_SOURCE": "No_buffer",
            "PRIM_IN_FREQ": f"{INIT_CLOCK_HZ / 1e6:g}",
            "CLKOUT1_REQUESTED_OUT_FREQ": target.clock_mhz,
            "USE_RESET": "false",
            "USE_LOCKED": "true",
        },
    )
    design.ip("core_reset", "proc_sys_reset", {"C_EXT_RESET_HIGH": 0})
    design.module(CORE)
    design.module(SYNCHRONIZER)
    init_clock, clock = "ddr4/addn_ui_clkout1", "core_clock/clk_out1"
    reset, pcie_clock = "core_reset/peripheral_aresetn", "xdma/axi_aclk"
    design.wire(init_clock, "core_clock/clk_in1")
    design.wire("core_clock/locked", "core_reset/dcm_locked")

    design.comment("Connections; SmartConnect converts clocks, widths and bursts.")
    design.ip("control", "smartconnect", {"NUM_SI": 1, "NUM_MI": 1, "NUM_CLKS": 2})
    design.ip("memory", "smartconnect", {"NUM_SI": 2, "NUM_MI": 1, "NUM_CLKS": 3})
    design.wire(
        clock, "core_reset/slowest_sync_clk", f"{CORE}/ap_clk", "control/aclk1", "memory/aclk"
    )
    design.wire(pcie_clock, "control/aclk", "memory/aclk1", f"{SYNCHRONIZER}/clk")
    design.wire("ddr4/c0_ddr4_ui_clk", "memory/aclk2")
    design.wire("xdma/axi_aresetn", "core_reset/ext_reset_in", "control/aresetn")
    design.wire(reset, f"{CORE}/ap_rst_n", "memory/aresetn")
    design.join("xdma/M_AXI_LITE", "control/S00_AXI")
    design.join("control/M00_AXI", f"{CORE}/{CONTROL}")
    design.join("xdma/M_AXI", "memory/S00_AXI")
    design.join(f"{CORE}/{MEMORY}", "memory/S01_AXI")
    design.join("memory/M00_AXI", "ddr4/C0_DDR4_S_AXI")
    design.wire(f"{CORE}/interrupt", f"{SYNCHRONIZER}/i")
    design.wire(f"{SYNCHRONIZER}/o", "xdma/usr_irq_req")
    add_auroras(design, target, clock=clock, reset=reset, init_clock=init_clock)

    design.comment("Addresses.")
    design.address("xdma/M_AXI_LITE", f"{CORE}/{CONTROL}/reg0", 0, 1 << ADDRESS_BITS)
    block = "ddr4/C0_DDR4_MEMORY_MAP/C0_DDR4_ADDRESS_BLOCK"
    for space in ("xdma/M_AXI", f"{CORE}/{MEMORY}"):
        design.address(space, block, 0, 1 << values.memory_address_bits)
    return design


def makefile(target: Target) -> str:
    """Return the Makefile."""
    sources = " ".join(
        [
            "build.tcl",
            TIMING_CHECK,
            f"../../../{target.core_file}",
            f"{CORE}.v",
            f"{SYNCHRONIZER}.v",
            *aurora_sources(target),
        ]
    )
    return f"""\
# Builds {BITSTREAM}.bit for {target.device}. Made by fpgapipe; do not edit.
# It needs Vivado in the shell: source its settings64.sh.
all: {BITSTREAM}.bit

{BITSTREAM}.bit: {sources}
	vivado -mode batch -nojournal -nolog -source build.tcl

clean:
	rm -rf build .Xil {BITSTREAM}.bit *.rpt

.PHONY: all clean
"""


def _how_to(target: Target) -> str:
    values = target.packaging.vivado
    assert values is not None, "the flow is vivado"
    return f"""
## Build

With Vivado in the shell (`source settings64.sh`) and the board files of `{values.board_part}`
installed (Vivado Store, or `set_param board.repoPaths` with a copy of Xilinx/XilinxBoardStore):

```sh
make            # {BITSTREAM}.bit; hours
```
{aurora_readme(target)}
## Reach it

Load `{BITSTREAM}.bit` by JTAG and restart the host, or rescan its PCIe bus. The XDMA driver of
Xilinx/dma_ip_drivers then offers:

| what | where |
|---|---|
| registers of the core | `/dev/xdma0_user` from 0x0 on, 4 bytes at a time |
| memory | `/dev/xdma0_h2c_0` and `/dev/xdma0_c2h_0` from 0x0 on; \
{1 << values.memory_address_bits:,} bytes |
| interrupt | `/dev/xdma0_events_0` |
"""


FLOW = Flow(files, _how_to, vendor_tools, PHY_PROTOCOL, key="vivado", backend="xdma")
