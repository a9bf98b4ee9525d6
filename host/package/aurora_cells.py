"""Auroras in block designs: their cells, ports and constraints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.host.package.aurora import (
    bridge_name,
    clock_constraints,
    ip_commands,
    module,
    module_name,
)
from fpgapipe.host.package.bridge import bridge_verilog
from fpgapipe.host.package.target import INIT_CLOCK_HZ
from fpgapipe.host.package.tcl import call, command
from fpgapipe.host.package.wrapper import CORE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fpgapipe.boards.packaging import ConstantPin
    from fpgapipe.host.package.block_design import BlockDesign
    from fpgapipe.host.package.target import LinkEnd, Target


def port_name(link: LinkEnd) -> str:
    """Name of a link's ports at the edge of the design, such as ``qsfp0``."""
    return f"{link.transceiver.link}{link.transceiver.port}".replace("-", "_").replace(".", "_")


def aurora_files(target: Target) -> Iterator[tuple[str, str]]:
    """Names and texts of the files that the links of a device need."""
    for link in target.links:
        name = module_name(link)
        yield f"{name}.v", module(link)
        yield f"{bridge_name(link.bridge)}.v", bridge_verilog(link.bridge)
        yield f"{name}.xdc", clock_constraints(link, target.clk_hz, INIT_CLOCK_HZ)
    if target.links:
        yield "board.xdc", board_constraints(target)


def aurora_sources(target: Target) -> list[str]:
    """Verilog files of the links."""
    names = [name for name, _ in aurora_files(target) if name.endswith(".v")]
    return list(dict.fromkeys(names))


def aurora_project(target: Target) -> list[str]:
    """Commands that add IP and constraints of the links to the project."""
    lines = []
    for link in target.links:
        name = module_name(link)
        lines += ip_commands(link, INIT_CLOCK_HZ)
        lines += [
            command("add_files", "-fileset", "constrs_1", "-norecurse", f"{name}.xdc"),
            command("set_property", "SCOPED_TO_REF", name, call("get_files", f"{name}.xdc")),
            command("set_property", "PROCESSING_ORDER", "LATE", call("get_files", f"{name}.xdc")),
        ]
    if target.links:
        lines.append(command("add_files", "-fileset", "constrs_1", "-norecurse", "board.xdc"))
    return lines


def aurora_readme(target: Target) -> str:
    """Return the README's lines on the modules around the Auroras; empty without links."""
    if not target.links:
        return ""
    names = ", ".join(f"`{module_name(link)}`" for link in target.links)
    return f"""
The block design refers to {names} as RTL modules, and each has
the `.xci` of an Aurora inside. Vivado takes such modules by UG994 ("XCI Inferencing", "Limitations
of the Module Reference Feature"; those of 2023.1, 2023.2 and 2026.1 were read, and nothing was
tried) if the IP allows it, which the Tcl console says with a 1:

```tcl
get_property SUPPORTS_MODREF [get_ipdefs xilinx.com:ip:aurora_64b66b:*]
```

If it is 0, `create_bd_cell` ends with `[filemgmt 56-181]`; take another release.
"""


def add_auroras(
    design: BlockDesign, target: Target, *, clock: str, reset: str, init_clock: str
) -> None:
    """Add the cells of all links to a design with the core.

    Parameters
    ----------
    design : BlockDesign
    target : Target
    clock, reset, init_clock : str
        Pins of the core's clock, its active-low reset, and the free-running clock.
    """
    for link in target.links:
        cell, port, transceiver = module_name(link), port_name(link), link.transceiver
        design.comment(f"Link {link.number}, port {transceiver.name}.")
        design.module(cell)
        design.interface_port(
            f"{port}_refclk",
            "Slave",
            "diff_clock",
            {"FREQ_HZ": round(transceiver.reference_clock_hz)},
        )
        design.interface_port(port, "Master", "gt")
        design.join(f"{port}_refclk", f"{cell}/gt_refclk")
        design.join(f"{cell}/gt_port", port)
        design.join(f"{CORE}/link{link.number}_tx", f"{cell}/tx_axis")
        design.join(f"{cell}/rx_axis", f"{CORE}/link{link.number}_rx")
        design.join(f"{cell}/clock_axis", f"{CORE}/link{link.number}_clock")
        design.wire(clock, f"{cell}/ap_clk")
        design.wire(reset, f"{cell}/ap_rst_n")
        design.wire(init_clock, f"{cell}/init_clk")
        for pin in transceiver.constant_pins:
            name = constant_name(link, pin)
            design.ip(name, "xlconstant", {"CONST_WIDTH": 1, "CONST_VAL": pin.value})
            design.port(f"{name}_pin", "O", "data")
            design.wire(f"{name}/dout", f"{name}_pin")


def constant_name(link: LinkEnd, pin: ConstantPin) -> str:
    """Name of the cell behind a pin at a fixed level."""
    return f"{port_name(link)}_{pin.name}".replace("-", "_").replace(".", "_")


def board_constraints(target: Target) -> str:
    """Return pins, reference clocks and I/O standards of the ports in use, as XDC."""
    lines = [f"# Pins and clocks of {target.board.title}. Made by fpgapipe; do not edit."]
    for link in target.links:
        port, transceiver = port_name(link), link.transceiver
        assert transceiver.clock_pins, "checked by the board's schema"
        assert transceiver.input_pins, "checked by the board's schema"
        assert transceiver.output_pins, "checked by the board's schema"
        lines += ["", f"# Link {link.number}, port {transceiver.name}."]
        for end, pin in zip(("p", "n"), transceiver.clock_pins, strict=True):
            lines.append(_pin(pin, f"{port}_refclk_clk_{end}"))
        period_ns = 1e9 / transceiver.reference_clock_hz
        lines.append(
            f"create_clock -name {port}_refclk -period {period_ns:.3f} "
            f"[get_ports {port}_refclk_clk_p]"
        )
        for way, pins in (("grx", transceiver.input_pins), ("gtx", transceiver.output_pins)):
            for index, pin in enumerate(pins):
                lines.append(_pin(pin, f"{port}_{way}_{'pn'[index % 2]}[{index // 2}]"))
        for each in transceiver.constant_pins:
            name = f"{constant_name(link, each)}_pin"
            lines.append(_pin(each.pin, name))
            lines.append(f"set_property IOSTANDARD {each.standard} [get_ports {name}]")
            lines.append(f"set_false_path -to [get_ports {name}]")
    return "\n".join(lines) + "\n"


def _pin(pin: str, port: str) -> str:
    quoted = f"{{{port}}}" if "[" in port else port
    return f"set_property PACKAGE_PIN {pin} [get_ports {quoted}]"
