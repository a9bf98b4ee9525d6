"""Packages for Vitis: the core as a user-managed kernel, Aurora kernels, and the linker's settings.

Sources: UG1700 and UG1702 (linker), UG1393 (requirements of RTL kernels).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpgapipe.host.package.aurora import (
    bridge_name,
    clock_constraints,
    kernel_script,
    module,
    module_name,
)
from fpgapipe.host.package.bridge import bridge_verilog
from fpgapipe.host.package.clocks import ACHIEVED
from fpgapipe.host.package.flow import PHY_PROTOCOL, Flow, vendor_tools
from fpgapipe.host.package.shim import SHIM_FILES, SHIM_LIBRARY, shim_text
from fpgapipe.host.package.tcl import Variable, call, command, script
from fpgapipe.host.package.wrapper import CONTROL, CORE, interfaces, memories, wrapper
from fpgapipe.hw.hls_models.model.registers import ADDRESS_BITS, RegisterMap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fpgapipe.boards.packaging import Vitis
    from fpgapipe.host.package.target import LinkEnd, Target
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec

POINTERS = ("MEMORY_BASE", "MEMORY_LIMIT")
"""Registers that Vitis takes for the arguments which point to memory, one for each port."""

XCLBIN = "fpgapipe.xclbin"

JOIN = "join_transceivers.tcl"
"""Name of the file that joins transceivers after the linker has joined the rest."""

_HOOK = f"""\
# Transceivers are joined by the linker (connect), or by Tcl commands after it (hook).
TRANSCEIVERS ?= connect
HOOK = $(if $(filter hook,$(TRANSCEIVERS)),--advanced.param \\
	compiler.userPostSysLinkOverlayTcl=$(CURDIR)/{JOIN})
"""


def instance(number: int) -> str:
    """Name of the core of a board's node, as an instance of its kernel."""
    return f"{CORE}_{number}"


def kernels(target: Target) -> dict[str, list[Target]]:
    """Names of the kernels of a board's cores, and the nodes that have each: equal cores are one.

    Those with two memory ports have as much memory, too, since the second port begins behind half
    of it. A kernel that is not the first node's is named by the first node that has it.
    """
    found: dict[str, list[Target]] = {}
    names: dict[tuple[CoreSpec, int], str] = {}
    for node in target.nodes:
        key = node.core, node.reached_bytes if node.core.memory_ports > 1 else 0
        name = names.setdefault(key, f"{CORE}_of_{node.number}" if names else CORE)
        found.setdefault(name, []).append(node)
    return found


def _aurora_links(target: Target) -> list[tuple[Target, LinkEnd]]:
    """The links to other boards, with their nodes."""
    found = [(node, link) for node in target.nodes for link in node.links]
    names = [module_name(link) for _, link in found]
    assert len(set(names)) == len(names), "data enter by link 0 and leave by the next one"
    return found


def files(target: Target) -> Iterator[tuple[str, str]]:
    """Names and texts of the files of a board, but for its README."""
    values = target.packaging.vitis
    assert values is not None, "Flow.check refuses others"
    for kernel, (node, *_) in kernels(target).items():
        yield f"{kernel}.v", wrapper(node.core, node.verilog, kernel, node.reached_bytes)
        yield f"package_{kernel}.tcl", package_script(node, kernel)
    for node, link in _aurora_links(target):
        name = module_name(link)
        yield f"{name}.v", module(link)
        yield f"{bridge_name(link.bridge)}.v", bridge_verilog(link.bridge)
        yield f"{name}.xdc", clock_constraints(link, node.clk_hz, values.init_clock_hz)
        yield f"package_{name}.tcl", kernel_script(node, link, values.init_clock_hz)
    yield "link.cfg", link_config(target, values)
    if _aurora_links(target):
        yield JOIN, join_script(target, values)
    for name in SHIM_FILES:
        yield name, shim_text(name)
    yield "Makefile", makefile(target, values)


def registers(core: CoreSpec) -> Iterator[tuple[str, int, int, str]]:
    """Name, offset, width in bits and meaning of the kernel's registers.

    The two halves of a pointer to memory are one register, so that the tools connect it.
    """
    pointers = POINTERS[: core.memory_ports]
    for register in RegisterMap(core):
        pointer, _, half = register.name.rpartition("_")
        if pointer not in pointers:
            yield register.name, register.offset, 32, register.meaning
        elif half == "LO":
            meaning = register.meaning.removesuffix(": bits 31:0.") + "."
            yield pointer, register.offset, 64, meaning


def package_script(target: Target, kernel: str = CORE) -> str:
    """Return the Tcl that packages a node's core as a kernel."""
    ip = f"build/{kernel}_ip"
    core, block = Variable("$core"), Variable("$block")
    described = []
    pointers = dict(zip(POINTERS, memories(target.core), strict=False))
    for name, offset, bits, meaning in registers(target.core):
        described += [
            command("set", "register", call("ipx::add_register", name, block)),
            command("set_property", "description", meaning, Variable("$register")),
            command("set_property", "address_offset", f"{offset:#05x}", Variable("$register")),
            command("set_property", "size", bits, Variable("$register")),
        ]
        if name in pointers:
            described += [
                command(
                    *("set", "parameter"),
                    call("ipx::add_register_parameter", "ASSOCIATED_BUSIF", Variable("$register")),
                ),
                command("set_property", "value", pointers[name], Variable("$parameter")),
            ]
    core_file = f"../../../{target.core_file}"
    return script(
        f"Packages the core of {target.device} as the kernel {kernel}. Made by fpgapipe.",
        [
            command(
                "create_project",
                "-force",
                kernel,
                f"build/{kernel}",
                "-part",
                target.board.part.name,
            ),
            command("add_files", "-norecurse", call("list", core_file, f"{kernel}.v")),
            command("set_property", "top", kernel, call("current_fileset")),
            command("update_compile_order", "-fileset", "sources_1"),
            command(
                *("ipx::package_project", "-root_dir", ip, "-vendor", "fpgapipe"),
                *("-library", "kernel", "-taxonomy", "/KernelIP", "-import_files"),
                *("-set_current", "false"),
            ),
            command("ipx::unload_core", f"{ip}/component.xml"),
            command(
                *("ipx::edit_ip_in_project", "-upgrade", "true", "-name", "edit"),
                *("-directory", ip, f"{ip}/component.xml"),
            ),
            command("set", "core", call("ipx::current_core")),
        ],
        [
            *(
                command("ipx::associate_bus_interfaces", "-busif", each, "-clock", "ap_clk", core)
                for each in interfaces(target.core)
            ),
            command(
                "ipx::associate_bus_interfaces", "-clock", "ap_clk", "-reset", "ap_rst_n", core
            ),
        ],
        [
            command("set", "map", call("ipx::add_memory_map", "-quiet", CONTROL, core)),
            command(
                "set", "block", call("ipx::add_address_block", "-quiet", "reg0", Variable("$map"))
            ),
            command("set_property", "range", 1 << ADDRESS_BITS, block),
            *described,
            command(
                *("set_property", "slave_memory_map_ref", CONTROL),
                call("ipx::get_bus_interfaces", CONTROL, "-of_objects", core),
            ),
        ],
        [
            command("set_property", "sdx_kernel", "true", core),
            command("set_property", "sdx_kernel_type", "rtl", core),
            command("set_property", "ipi_drc", "ignore_freq_hz true", core),
            command("set_property", "vitis_drc", "ctrl_protocol user_managed", core),
            command("ipx::create_xgui_files", core),
            command("ipx::update_checksums", core),
            command("ipx::check_integrity", "-kernel", core),
            command("ipx::save_core", core),
            command("close_project", "-delete"),
            command(
                *("package_xo", "-force", "-xo_path", f"{kernel}.xo", "-kernel_name", kernel),
                *("-ctrl_protocol", "user_managed", "-ip_directory", ip),
            ),
        ],
    )


def memory_connections(node: Target) -> dict[str, str]:
    """The memory that each master of a node's core is connected to, as the linker names it."""
    name = "HBM" if node.memory.kind.startswith("hbm") else "DDR"
    masters, channels = memories(node.core), node.reached_channels
    each = len(channels) // len(masters)
    found = {}
    for number, master in enumerate(masters):
        first, last = channels[number * each], channels[(number + 1) * each - 1]
        found[master] = f"{name}[{first}:{last}]" if last > first else f"{name}[{first}]"
    return found


def _memory_of(node: Target) -> str:
    """The memory that a node's core is connected to, for a text."""
    return " and ".join(f"`{each}`" for each in memory_connections(node).values())


def link_config(target: Target, values: Vitis) -> str:
    """Return the settings of the linker."""
    lines = [
        f"# Linker settings of {target.board_name}. Made by fpgapipe; do not edit.",
        f"platform={values.platform}",
        f"kernel_frequency={target.clock_mhz}",
        "save-temps=1",
        "",
        "[connectivity]",
    ]
    for kernel, nodes in kernels(target).items():
        names = ".".join(instance(node.number) for node in nodes)
        lines.append(f"nk={kernel}:{len(nodes)}:{names}")
    auroras = [module_name(link) for _, link in _aurora_links(target)]
    lines += [f"nk={each}:1:{each}" for each in auroras]
    for node in target.nodes:
        own = instance(node.number)
        lines += [f"sp={own}.{port}:{each}" for port, each in memory_connections(node).items()]
        if node.channels or node.die == values.memory_die:
            lines.append(f"slr={own}:{node.die}")
        lines += [
            f"stream_connect={own}.link{end.number}_tx:{instance(end.node)}.link{end.other}_rx"
            for end in node.on_chip
        ]
    dies = {group.name: group.die for group in target.board.links}
    for node, link in _aurora_links(target):
        own, aurora = instance(node.number), module_name(link)
        die = dies[link.transceiver.link]
        lines += [f"slr={aurora}:{die}"] if die else []
        lines += [
            f"stream_connect={own}.link{link.number}_tx:{aurora}.tx_axis",
            f"stream_connect={aurora}.rx_axis:{own}.link{link.number}_rx",
            f"stream_connect={aurora}.clock_axis:{own}.link{link.number}_clock",
            f"connect={link.transceiver.platform_clock}:{aurora}/gt_refclk",
            f"connect={aurora}/gt_port:{link.transceiver.platform_lanes}",
            f"connect={values.init_clock}:{aurora}/init_clk",
        ]
    return "\n".join(lines) + "\n"


def join_script(target: Target, values: Vitis) -> str:
    """Return Tcl commands that join what ``connect`` joins in the linker's settings."""
    lines = []
    for _, link in _aurora_links(target):
        cell, port = module_name(link), link.transceiver
        for outer, inner in (
            (port.platform_clock, "gt_refclk"),
            (port.platform_lanes, "gt_port"),
        ):
            lines.append(
                command(
                    "connect_bd_intf_net",
                    call("get_bd_intf_ports", outer),
                    call("get_bd_intf_pins", f"{cell}/{inner}"),
                )
            )
        pins = (values.init_clock, f"{cell}/init_clk")
        lines.append(command("connect_bd_net", *(call("get_bd_pins", each) for each in pins)))
    return script(
        f"Joins the transceivers of {target.board_name} in the linked design. Made by fpgapipe.",
        lines,
    )


def makefile(target: Target, values: Vitis) -> str:
    """Return the Makefile, whose first target is the file that XRT loads."""
    links = _aurora_links(target)
    names = [*kernels(target), *(module_name(link) for _, link in links)]
    objects = " ".join(f"{name}.xo" for name in names)
    hook = JOIN if links else ""
    rules = [
        f"""\
{kernel}.xo: package_{kernel}.tcl {kernel}.v ../../../{nodes[0].core_file}
	vivado -mode batch -nojournal -nolog -source $<
"""
        for kernel, nodes in kernels(target).items()
    ]
    for _, link in links:
        name = module_name(link)
        sources = f"{name}.v {name}.xdc {bridge_name(link.bridge)}.v"
        rules.append(f"""\
{name}.xo: package_{name}.tcl {sources}
	vivado -mode batch -nojournal -nolog -source $<
""")
    return f"""\
# Builds {XCLBIN} for {target.board_name}, {values.platform}. Made by fpgapipe; do not edit.
# It needs Vitis (vivado, v++) and XRT in the shell: source their settings64.sh and setup.sh.
XILINX_XRT ?= /opt/xilinx/xrt
CXX ?= g++
{_HOOK if hook else ""}
all: {XCLBIN} {ACHIEVED} {SHIM_LIBRARY}

{XCLBIN}: link.cfg {f"{hook} {objects}".strip()}
	sed '$(if $(HOOK),/^connect=/d)' link.cfg > used.cfg
	v++ --link --target hw --config used.cfg $(HOOK) --output $@ {objects}

{ACHIEVED}: {XCLBIN}
	xclbinutil --quiet --force --input $< --dump-section CLOCK_FREQ_TOPOLOGY:JSON:$@
	@echo "Planned for {target.clock_mhz} MHz; the kernel (type DATA) got:"
	@grep -B 1 '"DATA"' $@

{chr(10).join(rules)}
{SHIM_LIBRARY}: xrt_shim.cpp xrt_shim.h
	$(CXX) -std=c++17 -O2 -fPIC -shared -isystem $(XILINX_XRT)/include $< -o $@ \\
		-L$(XILINX_XRT)/lib -Wl,-rpath,$(XILINX_XRT)/lib -lxrt_coreutil

clean:
	rm -rf build _x .Xil *.xo used.cfg {ACHIEVED} {XCLBIN}* {SHIM_LIBRARY}

.PHONY: all clean
"""


_TRANSCEIVERS = f"""
Transceivers are joined to the platform by `connect` in `link.cfg`, as the Aurora kernels of
Xilinx/Vitis-Tutorials are for a U200. Xilinx/xup_vitis_network_example joins those of a U55C by Tcl
commands after the linker. If the linker refuses `connect`, `make TRANSCEIVERS=hook` does so, too,
with `{JOIN}`.
"""


def _how_to(target: Target) -> str:
    values = target.packaging.vitis
    assert values is not None, "the flow is vitis"
    steps = "\n".join(
        f"| kernel | `vivado -mode batch -source package_{each}.tcl` |" for each in kernels(target)
    )
    return f"""
## Build

With Vitis and XRT in the shell (`source settings64.sh`, `source /opt/xilinx/xrt/setup.sh`) and the
platform `{values.platform}` installed:

```sh
make            # {XCLBIN} and {SHIM_LIBRARY}; hours
```

| step | command |
|---|---|
{steps}
| link | `v++ --link --target hw --config link.cfg --output {XCLBIN} *.xo` |

{_places(target, values)}

If the kernel does not reach {target.clock_mhz} MHz, `v++` lowers its clock and goes on. `make`
therefore writes the clocks of the bitstream to `{ACHIEVED}` and prints that of the
kernel; `fpgapipe run`, `report` and `bringup` read the file from here.
{_TRANSCEIVERS if _aurora_links(target) else ""}
## Reach it

The kernel is user-managed, for which pyxrt has no registers. `{SHIM_LIBRARY}` has C functions over
`xrt::ip` and `xrt::bo`; `xrt_shim.h` documents them. {_instances(target)}
"""


def _places(target: Target, values: Vitis) -> str:
    """Where the cores are, and the memory that each has."""
    if target.channels:
        rows = [
            f"| `{instance(node.number)}` | `{kernel}` | {node.die} | {_memory_of(node)} |"
            for kernel, nodes in kernels(target).items()
            for node in nodes
        ]
        return "\n".join(
            ("| node's core | kernel | die | memory |", "|---|---|---|---|", *sorted(rows))
        )
    where = (
        f"It fits {target.die} and is placed there."
        if target.die == values.memory_die
        else "It does not fit one die next to the memory, so the tools place it."
    )
    own = instance(target.number)
    return f"The kernel `{own}` is connected to {_memory_of(target)}. {where}"


def _instances(target: Target) -> str:
    names = ", ".join(f"`{instance(node.number)}`" for node in target.nodes)
    return (
        f"The instance is\n{names}." if len(target.nodes) == 1 else f"The instances are\n{names}."
    )


FLOW = Flow(files, _how_to, vendor_tools, PHY_PROTOCOL, key="vitis", backend="xrt", has_nodes=True)
