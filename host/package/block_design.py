"""Block designs of Vivado as Tcl: cells, ports, connections and addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.host.package.tcl import Call, call, command, properties

if TYPE_CHECKING:
    from collections.abc import Mapping

DESIGN = "system"
"""Name of the block design."""


class BlockDesign:
    """A block design that grows line by line.

    Pins are named ``cell/pin``; a name without a slash is a port of the design.

    Attributes
    ----------
    lines : list of str
        Commands so far.
    """

    def __init__(self) -> None:
        # The hierarchy has to be known before a cell refers to a module.
        self.lines = [
            command("update_compile_order", "-fileset", "sources_1"),
            command("create_bd_design", DESIGN),
        ]

    def comment(self, text: str) -> None:
        """Begin a group of commands."""
        self.lines += ["", f"# {text}"]

    def ip(self, name: str, kind: str, settings: Mapping[str, object] | None = None) -> None:
        """Add a cell of an IP, of the newest version that the tools have."""
        self.lines.append(
            command("create_bd_cell", "-type", "ip", "-vlnv", f"xilinx.com:ip:{kind}", name)
        )
        if settings:
            self.configure(name, settings)

    def configure(self, name: str, settings: Mapping[str, object]) -> None:
        """Set properties of a cell, whose names are given without ``CONFIG.``."""
        values = {f"CONFIG.{key}": value for key, value in settings.items()}
        self.lines.append(properties(values, call("get_bd_cells", name)))

    def module(self, name: str) -> None:
        """Add a cell of a module in Verilog that has the same name."""
        self.lines.append(command("create_bd_cell", "-type", "module", "-reference", name, name))

    def automate(self, rule: str, settings: str, name: str) -> None:
        """Have the tools complete a cell by one of their rules."""
        self.lines.append(
            command(
                *("apply_bd_automation", "-rule", f"xilinx.com:bd_rule:{rule}"),
                *("-config", settings, call("get_bd_cells", name)),
            )
        )

    def interface_port(
        self, name: str, mode: str, kind: str, settings: Mapping[str, object] | None = None
    ) -> None:
        """Add an interface at the edge of the design."""
        vlnv = f"xilinx.com:interface:{kind}_rtl:1.0"
        self.lines.append(command("create_bd_intf_port", "-mode", mode, "-vlnv", vlnv, name))
        if settings:
            values = {f"CONFIG.{key}": value for key, value in settings.items()}
            self.lines.append(properties(values, call("get_bd_intf_ports", name)))

    def port(
        self, name: str, direction: str, kind: str, settings: Mapping[str, object] | None = None
    ) -> None:
        """Add a port; the direction is I or O, and the kind is such as rst or data."""
        self.lines.append(command("create_bd_port", "-dir", direction, "-type", kind, name))
        if settings:
            values = {f"CONFIG.{key}": value for key, value in settings.items()}
            self.lines.append(properties(values, call("get_bd_ports", name)))

    def join(self, one: str, other: str) -> None:
        """Connect two interfaces."""
        self.lines.append(command("connect_bd_intf_net", _end(one, "intf_"), _end(other, "intf_")))

    def wire(self, driver: str, *loads: str) -> None:
        """Connect a pin or port to others that it drives."""
        self.lines.append(command("connect_bd_net", *(_end(each) for each in (driver, *loads))))

    def address(self, space: str, segment: str, offset: int, size_bytes: int) -> None:
        """Give a segment an address in the space of a master."""
        self.lines.append(
            command(
                *("assign_bd_address", "-offset", f"{offset:#x}", "-range", f"{size_bytes:#x}"),
                *("-target_address_space", call("get_bd_addr_spaces", space)),
                call("get_bd_addr_segs", segment),
            )
        )

    def exclude(self, space: str, segment: str) -> None:
        """Leave a segment that a master could reach without an address in its space."""
        self.lines.append(
            command(
                *(
                    "exclude_bd_addr_seg",
                    "-target_address_space",
                    call("get_bd_addr_spaces", space),
                ),
                call("get_bd_addr_segs", segment),
            )
        )

    def finish(self) -> list[str]:
        """Return all commands, with those that check and save the design."""
        return [
            *self.lines,
            "",
            "# The design has to pass the checks of the tools.",
            command("validate_bd_design"),
            command("save_bd_design"),
            command("make_wrapper", "-files", call("get_files", f"{DESIGN}.bd"), "-top", "-import"),
            command("set_property", "top", f"{DESIGN}_wrapper", call("current_fileset")),
            command("update_compile_order", "-fileset", "sources_1"),
        ]


def _end(name: str, kind: str = "") -> Call:
    what = "pins" if "/" in name else "ports"
    return call(f"get_bd_{kind}{what}", name)


def project_commands(part: str, board_part: str, sources: list[str]) -> list[str]:
    """Commands that begin a project with its Verilog."""
    return [
        command("create_project", "-force", "project", "build", "-part", part),
        command("set_property", "board_part", board_part, call("current_project")),
        command("add_files", "-norecurse", call("list", *sources)),
    ]


TIMING_CHECK = "check_timing.tcl"
"""Name of the file that ends a build whose timing is not met."""

TIMING_CHECK_TEXT = """\
# Ends the build if setup, hold or the width of a pulse is violated: such a bitstream computes wrong
# values now and then. Made by fpgapipe; do not edit.
foreach name {WNS WHS TPWS} {
    set slack [get_property STATS.$name [get_runs impl_1]]
    if {($slack eq "" || $slack < 0) && ![info exists ::env(IGNORE_TIMING)]} {
        error "timing is not met: $name is '$slack' ns, see timing.rpt; build for a lower clock or\
            a smaller array, or take the bitstream all the same with 'make IGNORE_TIMING=1'"
    }
}
"""


def bitstream_commands(name: str, *, exports: bool) -> list[str]:
    """Commands that run synthesis and implementation, and bring the results here.

    Parameters
    ----------
    name : str
        Name of the files, without ending.
    exports : bool
        Whether software needs a description of the hardware (.hwh, .xsa).
    """
    lines = [
        command("launch_runs", "impl_1", "-to_step", "write_bitstream", "-jobs", 4),
        command("wait_on_run", "impl_1"),
        command("open_run", "impl_1"),
        command("report_timing_summary", "-file", "timing.rpt"),
        command("report_utilization", "-hierarchical", "-file", "utilization.rpt"),
        command("source", TIMING_CHECK),
        command(
            "file",
            "copy",
            "-force",
            f"build/project.runs/impl_1/{DESIGN}_wrapper.bit",
            f"{name}.bit",
        ),
    ]
    if exports:
        handoff = f"build/project.gen/sources_1/bd/{DESIGN}/hw_handoff/{DESIGN}.hwh"
        lines += [
            command("file", "copy", "-force", handoff, f"{name}.hwh"),
            command(
                "write_hw_platform", "-fixed", "-include_bit", "-force", "-file", f"{name}.xsa"
            ),
        ]
    return lines
