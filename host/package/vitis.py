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
from fpgapipe.host.package.wrapper import CONTROL, CORE, MEMORY, interfaces, wrapper
from fpgapipe.hw.hls_models.model.registers import ADDRESS_BITS, RegisterMap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fpgapipe.boards.packaging import Vitis
    from fpgapipe.host.package.target import Target
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec

POINTER = "MEMORY_BASE"
"""The register that Vitis takes for the argument which points to memory."""

XCLBIN = "fpgapipe.xclbin"

JOIN = "join_transceivers.tcl"
"""Name of the file that joins transceivers after the linker has joined the rest."""

_HOOK = f"""\
# Transceivers are joined by the linker (connect), or by Tcl commands after it (hook).
TRANSCEIVERS ?= connect
HOOK = $(if $(filter hook,$(TRANSCEIVERS)),--advanced.param \\
	compiler.userPostSysLinkOverlayTcl=$(CURDIR)/{JOIN})
"""


def instance(kernel: str) -> str:
    """Name of the one instance of a kernel."""
    return f"{kernel}_0" if kernel == CORE else kernel


def files(target: Target, verilog: str) -> Iterator[tuple[str, str]]:
    """Names and texts of the files of a device, but for its README.

    Parameters
    ----------
    target : Target
    verilog : str
        Verilog of its core.
    """
    values = target.packaging.vitis
    assert values is not None, "Flow.check refuses others"
    yield f"{CORE}.v", wrapper(target.core, verilog)
    yield "package_kernel.tcl", package_script(target)
    for link in target.links:
        name = module_name(link)
        yield f"{name}.v", module(link)
        yield f"{bridge_name(link.bridge)}.v", bridge_verilog(link.bridge)
        yield f"{name}.xdc", clock_constraints(link, target.clk_hz, values.init_clock_hz)
        yield f"package_{name}.tcl", kernel_script(target, link, values.init_clock_hz)
    yield "link.cfg", link_config(target, values)
    if target.links:
        yield JOIN, join_script(target, values)
    for name in SHIM_FILES:
        yield name, shim_text(name)
    yield "Makefile", makefile(target, values)


def registers(core: CoreSpec) -> Iterator[tuple[str, int, int, str]]:
    """Name, offset, width in bits and meaning of the kernel's registers.

    The two halves of the pointer to memory are one register, so that the tools connect it.
    """
    for register in RegisterMap(core):
        if register.name == f"{POINTER}_HI":
            continue
        if register.name == f"{POINTER}_LO":
            meaning = register.meaning.removesuffix(": bits 31:0.") + "."
            yield POINTER, register.offset, 64, meaning
        else:
            yield register.name, register.offset, 32, register.meaning


def package_script(target: Target) -> str:
    """Return the Tcl that packages the core as a kernel."""
    core, block = Variable("$core"), Variable("$block")
    described = []
    for name, offset, bits, meaning in registers(target.core):
        described += [
            command("set", "register", call("ipx::add_register", name, block)),
            command("set_property", "description", meaning, Variable("$register")),
            command("set_property", "address_offset", f"{offset:#05x}", Variable("$register")),
            command("set_property", "size", bits, Variable("$register")),
        ]
        if name == POINTER:
            described += [
                command(
                    *("set", "parameter"),
                    call("ipx::add_register_parameter", "ASSOCIATED_BUSIF", Variable("$register")),
                ),
                command("set_property", "value", MEMORY, Variable("$parameter")),
            ]
    core_file = f"../../../{target.core_file}"
    return script(
        f"Packages the core of {target.device} as the kernel {CORE}. Made by fpgapipe.",
        [
            command(
                "create_project", "-force", CORE, f"build/{CORE}", "-part", target.board.part.name
            ),
            command("add_files", "-norecurse", call("list", core_file, f"{CORE}.v")),
            command("set_property", "top", CORE, call("current_fileset")),
            command("update_compile_order", "-fileset", "sources_1"),
            command(
                *("ipx::package_project", "-root_dir", "build/ip", "-vendor", "fpgapipe"),
                *("-library", "kernel", "-taxonomy", "/KernelIP", "-import_files"),
                *("-set_current", "false"),
            ),
            command("ipx::unload_core", "build/ip/component.xml"),
            command(
                *("ipx::edit_ip_in_project", "-upgrade", "true", "-name", "edit"),
                *("-directory", "build/ip", "build/ip/component.xml"),
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
                *("package_xo", "-force", "-xo_path", f"{CORE}.xo", "-kernel_name", CORE),
                *("-ctrl_protocol", "user_managed", "-ip_directory", "build/ip"),
            ),
        ],
    )


def memory_connection(target: Target) -> str:
    """The memory that the kernel's master is connected to, as the linker names it."""
    memory = next(each for each in target.board.memory if each.name == target.packaging.memory)
    name = "HBM" if memory.kind.startswith("hbm") else "DDR"
    last = memory.count - 1
    return f"{name}[0:{last}]" if last else f"{name}[0]"


def link_config(target: Target, values: Vitis) -> str:
    """Return the settings of the linker."""
    own = instance(CORE)
    lines = [
        f"# Linker settings of {target.device}. Made by fpgapipe; do not edit.",
        f"platform={values.platform}",
        f"kernel_frequency={target.clock_mhz}",
        "save-temps=1",
        "",
        "[connectivity]",
        f"nk={CORE}:1:{own}",
    ]
    lines += [f"nk={module_name(each)}:1:{instance(module_name(each))}" for each in target.links]
    lines.append(f"sp={own}.{MEMORY}:{memory_connection(target)}")
    if target.die == values.memory_die:
        lines.append(f"slr={own}:{target.die}")
    for link in target.links:
        aurora = instance(module_name(link))
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
    for link in target.links:
        cell, port = instance(module_name(link)), link.transceiver
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
        f"Joins the transceivers of {target.device} in the linked design. Made by fpgapipe.", lines
    )


def makefile(target: Target, values: Vitis) -> str:
    """Return the Makefile, whose first target is the file that XRT loads."""
    auroras = [module_name(link) for link in target.links]
    objects = " ".join(f"{name}.xo" for name in (CORE, *auroras))
    hook = JOIN if target.links else ""
    core_file = f"../../../{target.core_file}"
    rules = [
        f"""\
{CORE}.xo: package_kernel.tcl {CORE}.v {core_file}
	vivado -mode batch -nojournal -nolog -source $<
"""
    ]
    for link, name in zip(target.links, auroras, strict=True):
        sources = f"{name}.v {name}.xdc {bridge_name(link.bridge)}.v"
        rules.append(f"""\
{name}.xo: package_{name}.tcl {sources}
	vivado -mode batch -nojournal -nolog -source $<
""")
    return f"""\
# Builds {XCLBIN} for {target.device}, {values.platform}. Made by fpgapipe; do not edit.
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
    where = (
        f"It fits {target.die} and is placed there."
        if target.die == values.memory_die
        else "It does not fit one die next to the memory, so the tools place it."
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
| kernel | `vivado -mode batch -source package_kernel.tcl` |
| link | `v++ --link --target hw --config link.cfg --output {XCLBIN} *.xo` |

The kernel `{instance(CORE)}` is connected to `{memory_connection(target)}`. {where}

If the kernel does not reach {target.clock_mhz} MHz, `v++` lowers its clock and goes on. `make`
therefore writes the clocks of the bitstream to `{ACHIEVED}` and prints that of the
kernel; `fpgapipe run`, `report` and `bringup` read the file from here.
{_TRANSCEIVERS if target.links else ""}
## Reach it

The kernel is user-managed, for which pyxrt has no registers. `{SHIM_LIBRARY}` has C functions over
`xrt::ip` and `xrt::bo`; `xrt_shim.h` documents them. The instance is
`{CORE}:{{{instance(CORE)}}}`.
"""


FLOW = Flow(files, _how_to, vendor_tools, PHY_PROTOCOL, key="vitis", backend="xrt")
