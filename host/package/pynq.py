"""Packages for PYNQ: a block design around the processing system of a Zynq.

Sources: the Zynq shell of Xilinx/finn (ports, addresses); PYNQ, pynq_libraries/interrupt.rst: a
single interrupt goes to the first interrupt line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpgapipe.boards.packaging import SYSTEMS
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

    from fpgapipe.boards.packaging import Pynq
    from fpgapipe.host.package.target import Target

OVERLAY = "fpgapipe"
"""Name of the overlay's files."""

_CELL = "zynq_ps"
_GIB = 1 << 30


@dataclass(frozen=True)
class _System:
    """Names of a processing system, and the settings that open its ports."""

    ip: str
    rule: str
    automation: str
    settings: dict[str, object]
    clock_setting: str
    init_settings: dict[str, object]
    clock: str
    init_clock: str
    reset: str
    control: str
    control_clock: str
    memory: str
    memory_clock: str
    interrupt: str
    space: str
    segments: tuple[tuple[str, int, int], ...]
    excluded: tuple[str, ...] = ()


_SYSTEMS = {
    "zynq-ultrascale": _System(
        ip="zynq_ultra_ps_e",
        rule="zynq_ultra_ps_e",
        automation='apply_board_preset "1"',
        settings={
            "PSU__USE__M_AXI_GP0": 1,
            "PSU__USE__M_AXI_GP1": 0,
            "PSU__USE__M_AXI_GP2": 0,
            "PSU__USE__S_AXI_GP2": 1,
            "PSU__SAXIGP2__DATA_WIDTH": 8 * SYSTEMS["zynq-ultrascale"],
            "PSU__USE__IRQ0": 1,
            "PSU__FPGA_PL0_ENABLE": 1,
        },
        clock_setting="PSU__CRL_APB__PL0_REF_CTRL__FREQMHZ",
        init_settings={
            "PSU__FPGA_PL1_ENABLE": 1,
            "PSU__CRL_APB__PL1_REF_CTRL__FREQMHZ": f"{INIT_CLOCK_HZ / 1e6:g}",
        },
        clock="pl_clk0",
        init_clock="pl_clk1",
        reset="pl_resetn0",
        control="M_AXI_HPM0_FPD",
        control_clock="maxihpm0_fpd_aclk",
        memory="S_AXI_HP0_FPD",
        memory_clock="saxihp0_fpd_aclk",
        interrupt="pl_ps_irq0",
        space="Data",
        segments=(
            ("SAXIGP2/HP0_DDR_LOW", 0, 2 * _GIB),
            ("SAXIGP2/HP0_DDR_HIGH", 32 * _GIB, 2 * _GIB),
        ),
        excluded=("SAXIGP2/HP0_LPS_OCM", "SAXIGP2/HP0_QSPI"),
    ),
    "zynq-7000": _System(
        ip="processing_system7",
        rule="processing_system7",
        automation=(
            'make_external "FIXED_IO, DDR" apply_board_preset "1" Master "Disable" Slave "Disable"'
        ),
        settings={
            "PCW_USE_M_AXI_GP0": 1,
            "PCW_USE_S_AXI_HP0": 1,
            "PCW_S_AXI_HP0_DATA_WIDTH": 8 * SYSTEMS["zynq-7000"],
            "PCW_USE_FABRIC_INTERRUPT": 1,
            "PCW_IRQ_F2P_INTR": 1,
        },
        clock_setting="PCW_FPGA0_PERIPHERAL_FREQMHZ",
        init_settings={},
        clock="FCLK_CLK0",
        init_clock="",
        reset="FCLK_RESET0_N",
        control="M_AXI_GP0",
        control_clock="M_AXI_GP0_ACLK",
        memory="S_AXI_HP0",
        memory_clock="S_AXI_HP0_ACLK",
        interrupt="IRQ_F2P",
        space="Data",
        segments=(("S_AXI_HP0/HP0_DDR_LOWOCM", 0, 512 << 20),),
    ),
}


def files(target: Target) -> Iterator[tuple[str, str]]:
    """Names and texts of the files of a device, but for its README."""
    values = target.packaging.pynq
    assert values is not None, "Flow.check refuses others"
    yield f"{CORE}.v", wrapper(target.core, target.verilog)
    yield from aurora_files(target)
    yield "build.tcl", build_script(target, values)
    yield TIMING_CHECK, TIMING_CHECK_TEXT
    yield "Makefile", makefile(target)


def build_script(target: Target, values: Pynq) -> str:
    """Return the Tcl that makes the overlay."""
    sources = [f"../../../{target.core_file}", f"{CORE}.v", *aurora_sources(target)]
    return script(
        f"Builds the overlay {OVERLAY} for {target.device}. Made by fpgapipe; do not edit.",
        project_commands(target.board.part.name, values.board_part, sources),
        aurora_project(target),
        block_design(target, values).finish(),
        bitstream_commands(OVERLAY, exports=True),
    )


def block_design(target: Target, values: Pynq) -> BlockDesign:
    """Return the design: the core between a master and a memory port of the processing system."""
    system = _SYSTEMS[values.system]
    design = BlockDesign()
    design.comment("The processing system: one clock, one master, one port to memory.")
    design.ip(_CELL, system.ip)
    design.automate(system.rule, system.automation, _CELL)
    settings = system.settings | {system.clock_setting: target.clock_mhz}
    if target.links:
        settings |= system.init_settings
    design.configure(_CELL, settings)
    clock, ps_reset = f"{_CELL}/{system.clock}", f"{_CELL}/{system.reset}"
    design.comment("The core, its reset, and what joins it to the processing system.")
    design.ip("core_reset", "proc_sys_reset")
    design.module(CORE)
    for name in ("control", "memory"):
        design.ip(name, "smartconnect", {"NUM_SI": 1, "NUM_MI": 1, "NUM_CLKS": 1})
    reset = "core_reset/peripheral_aresetn"
    design.wire(
        clock,
        "core_reset/slowest_sync_clk",
        f"{CORE}/ap_clk",
        "control/aclk",
        "memory/aclk",
        f"{_CELL}/{system.control_clock}",
        f"{_CELL}/{system.memory_clock}",
    )
    design.wire(ps_reset, "core_reset/ext_reset_in")
    design.wire(reset, f"{CORE}/ap_rst_n", "control/aresetn", "memory/aresetn")
    design.join(f"{_CELL}/{system.control}", "control/S00_AXI")
    design.join("control/M00_AXI", f"{CORE}/{CONTROL}")
    design.join(f"{CORE}/{MEMORY}", "memory/S00_AXI")
    design.join("memory/M00_AXI", f"{_CELL}/{system.memory}")
    design.wire(f"{CORE}/interrupt", f"{_CELL}/{system.interrupt}")
    add_auroras(design, target, clock=clock, reset=reset, init_clock=f"{_CELL}/{system.init_clock}")
    design.comment("Addresses.")
    design.address(
        f"{_CELL}/{system.space}",
        f"{CORE}/{CONTROL}/reg0",
        int(values.registers, 16),
        1 << ADDRESS_BITS,
    )
    left = next(each for each in target.board.memory if each.name == values.memory).size_bytes
    for segment, offset, most in system.segments:
        size = min(left, most)
        left -= size
        if size:
            design.address(f"{CORE}/{MEMORY}", f"{_CELL}/{segment}", offset, size)
        else:
            design.exclude(f"{CORE}/{MEMORY}", f"{_CELL}/{segment}")
    for segment in system.excluded:
        design.exclude(f"{CORE}/{MEMORY}", f"{_CELL}/{segment}")
    return design


def makefile(target: Target) -> str:
    """Return the Makefile."""
    sources = " ".join(
        [
            "build.tcl",
            TIMING_CHECK,
            f"../../../{target.core_file}",
            f"{CORE}.v",
            *aurora_sources(target),
        ]
    )
    return f"""\
# Builds the overlay {OVERLAY} for {target.device}. Made by fpgapipe; do not edit.
# It needs Vivado in the shell: source its settings64.sh.
all: {OVERLAY}.bit

{OVERLAY}.bit: {sources}
	vivado -mode batch -nojournal -nolog -source build.tcl

clean:
	rm -rf build .Xil {OVERLAY}.bit {OVERLAY}.hwh {OVERLAY}.xsa *.rpt

.PHONY: all clean
"""


def _how_to(target: Target) -> str:
    values = target.packaging.pynq
    assert values is not None, "the flow is pynq"
    return f"""
## Build

With Vivado in the shell (`source settings64.sh`) and the board files of `{values.board_part}`
installed (Vivado Store, or `set_param board.repoPaths` with a copy of Xilinx/XilinxBoardStore):

```sh
make            # {OVERLAY}.bit, {OVERLAY}.hwh and {OVERLAY}.xsa
```
{aurora_readme(target)}
## Reach it

Copy `{OVERLAY}.bit` and `{OVERLAY}.hwh` to one folder on the board. `pynq.Overlay` loads the first
and finds the second by its name. The registers are at `{values.registers}`
(`pynq.MMIO({values.registers}, 4096)`); memory comes from `pynq.allocate`, whose `device_address`
the core takes; the interrupt is the first line of the fabric.
"""


FLOW = Flow(files, _how_to, vendor_tools, PHY_PROTOCOL, key="pynq", backend="pynq")
