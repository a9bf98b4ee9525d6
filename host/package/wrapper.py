"""The top module of a packaged core: the core with port names and attributes of the vendor's tools.

The wrapper renames ports, gives the identifiers of reads and writes one width, and makes the
synchronous reset of an active-low one. Before two memory ports it puts the bits of addresses where
:func:`fpgapipe.hw.hls_models.spec.interleave.port_address` says. Source of the names: UG1393,
"Requirements of an RTL Kernel"; attributes: UG994, "Inferring Interfaces of a Module".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpgapipe.hw.hls_models.model.registers import ADDRESS_BITS
from fpgapipe.hw.hls_models.spec.interleave import BLOCK_BITS, BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec

CORE = "fpgapipe_core"
"""Name of the wrapper's module, of the kernel and of its cell in block designs."""

CONTROL = "S_AXI_CONTROL"
"""Name of the interface of the registers."""

MEMORY, SECOND_MEMORY = "m_axi", "m_axi1"
"""Names of the interfaces to memory."""

MEMORY_ADDRESS_BITS = 64

_MEMORIES = (MEMORY, SECOND_MEMORY)

_TOP = re.compile(r"^module top\(.*?^endmodule", re.MULTILINE | re.DOTALL)
_PORT = re.compile(r"^  (input|output) (?:\[(\d+):0\] )?(\w+);", re.MULTILINE)


@dataclass(frozen=True)
class Port:
    """A port of the wrapper, the core's port behind it, and the interface that it belongs to.

    Attributes
    ----------
    name : str
    core : str
        Name of the core's port.
    bits : int
        Width at the wrapper.
    core_bits : int
        Width at the core.
    is_input : bool
    interface, signal : str
        Name of the interface and of the signal in it.
    """

    name: str
    core: str
    bits: int
    core_bits: int
    is_input: bool
    interface: str
    signal: str


def interfaces(core: CoreSpec) -> list[str]:
    """Names of the bus interfaces, all of which have the clock ``ap_clk``."""
    links = [
        f"link{number}_{way}"
        for number, link in enumerate(core.links)
        for way in ("tx", "rx", *(("clock",) if link.has_phy else ()))
    ]
    return [CONTROL, *memories(core), *links]


def memories(core: CoreSpec) -> tuple[str, ...]:
    """Names of the interfaces to memory that a core has."""
    return _MEMORIES[: core.memory_ports]


def core_ports(verilog: str) -> list[Port]:
    """Return the ports of a core's interfaces; clock, reset and interrupt are left out.

    Parameters
    ----------
    verilog : str
        Verilog of the core, as builds have it.

    Raises
    ------
    ValueError
        If it has no module ``top``.
    """
    found = _TOP.search(verilog)
    if found is None:
        raise ValueError("the Verilog of a core needs a module named top")
    declared = [
        (way == "input", int(high or 0) + 1, name) for way, high, name in _PORT.findall(found[0])
    ]
    id_bits = max(bits for _, bits, name in declared if name in ("m_axi_arid", "m_axi_awid"))
    ports = []
    for is_input, bits, name in declared:
        split = _split(name)
        if split is None:
            continue
        interface, signal = split
        is_id = interface in _MEMORIES and signal in ("ARID", "AWID", "RID", "BID")
        ports.append(
            Port(
                f"{interface}_{signal if interface == CONTROL else signal.lower()}",
                name,
                id_bits if is_id else bits,
                bits,
                is_input,
                interface,
                signal,
            )
        )
    return ports


def _split(name: str) -> tuple[str, str] | None:
    """Interface and signal of a core's port."""
    if name.startswith("s_axil_"):
        return CONTROL, name.removeprefix("s_axil_").upper()
    for interface in _MEMORIES:
        if name.startswith(f"{interface}_"):
            return interface, name.removeprefix(f"{interface}_").upper()
    for prefix, way in (("m_axis_link", "tx"), ("s_axis_link", "rx"), ("s_axis_clock", "clock")):
        if name.startswith(prefix):
            number, _, signal = name.removeprefix(prefix).partition("_")
            return f"link{number}_{way}", signal.upper()
    return None


def _parameters(core: CoreSpec, interface: str, ports: list[Port]) -> str:
    """Parameters of an interface, which the tools cannot see in its ports."""
    if interface == CONTROL:
        return f"PROTOCOL AXI4LITE, DATA_WIDTH 32, ADDR_WIDTH {ADDRESS_BITS}"
    if interface in _MEMORIES:
        id_bits = next(port.bits for port in ports if port.signal == "ARID")
        return (
            f"PROTOCOL AXI4, DATA_WIDTH {8 * core.bus_bytes}, ADDR_WIDTH {MEMORY_ADDRESS_BITS}, "
            f"ID_WIDTH {id_bits}, MAX_BURST_LENGTH {core.burst_beats}, SUPPORTS_NARROW_BURST 0, "
            f"NUM_READ_OUTSTANDING {core.outstanding}"
        )
    signals = {port.signal: port.bits for port in ports if port.interface == interface}
    marks = [f"HAS_{name} {int(name in signals)}" for name in ("TKEEP", "TLAST", "TREADY")]
    return f"TDATA_NUM_BYTES {signals['TDATA'] // 8}, {', '.join(marks)}"


def wrapper(core: CoreSpec, verilog: str, name: str = CORE, memory_bytes: int | None = None) -> str:
    """Return the Verilog of the wrapper around the module ``top`` of a core's Verilog.

    Parameters
    ----------
    core : CoreSpec
    verilog : str
    name : str
        Name of the wrapper's module.
    memory_bytes : int, optional
        Size of the memory behind two ports, both together.

    Raises
    ------
    ValueError
        If the core has two memory ports, and the memory's size is not given or no whole blocks.
    """
    ports = core_ports(verilog)
    wires = [*_wires(ports)]
    if core.memory_ports > 1:
        if not memory_bytes or memory_bytes % (2 * BLOCK_BYTES):
            raise ValueError(
                f"the memory behind two ports must have a multiple of {2 * BLOCK_BYTES:,} bytes, "
                f"not {memory_bytes!r}"
            )
        wires += _addresses(ports, memory_bytes // 2)
    buses = ":".join(interfaces(core))
    lines = [
        "// The core with the port names of the vendor's tools. Made by fpgapipe; do not edit.",
        "`default_nettype none",
        "",
        f"module {name} (",
        *_attribute("clock:1.0 ap_clk CLK", "signal"),
        f'    (* X_INTERFACE_PARAMETER = "XIL_INTERFACENAME ap_clk, ASSOCIATED_BUSIF {buses}, '
        'ASSOCIATED_RESET ap_rst_n" *)',
        "    input  wire ap_clk,",
        *_attribute("reset:1.0 ap_rst_n RST", "signal"),
        '    (* X_INTERFACE_PARAMETER = "XIL_INTERFACENAME ap_rst_n, POLARITY ACTIVE_LOW" *)',
        "    input  wire ap_rst_n,",
    ]
    seen: set[str] = set()
    for port in ports:
        kind = "aximm" if port.interface in (CONTROL, *_MEMORIES) else "axis"
        lines += _attribute(f"{kind}:1.0 {port.interface} {port.signal}", "interface")
        if port.interface not in seen:
            seen.add(port.interface)
            parameters = _parameters(core, port.interface, ports)
            lines.append(
                f'    (* X_INTERFACE_PARAMETER = "XIL_INTERFACENAME {port.interface}, '
                f'{parameters}" *)'
            )
        lines.append(f"    {_way(port)} {_range(port.bits)}{port.name},")
    lines += [
        *_attribute("interrupt:1.0 interrupt INTERRUPT", "signal"),
        '    (* X_INTERFACE_PARAMETER = "XIL_INTERFACENAME interrupt, SENSITIVITY LEVEL_HIGH" *)',
        "    output wire interrupt",
        ");",
        "",
        "    // The core's reset is synchronous and active high.",
        "    reg reset;",
        "    initial reset = 1'b1;",
        "    always @(posedge ap_clk) reset <= ~ap_rst_n;",
        "",
        *wires,
        "    top core (",
        "        .clk(ap_clk),",
        "        .rst(reset),",
        *(f"        .{port.core}({_connection(core, port)})," for port in ports),
        "        .irq(interrupt)",
        "    );",
        "endmodule",
        "",
        "`default_nettype wire",
    ]
    return "\n".join(lines) + "\n"


def _attribute(what: str, group: str) -> list[str]:
    return [f'    (* X_INTERFACE_INFO = "xilinx.com:{group}:{what}" *)']


def _way(port: Port) -> str:
    return "input  wire" if port.is_input else "output wire"


def _range(bits: int) -> str:
    return f"[{bits - 1}:0] " if bits > 1 else ""


def _is_spread(port: Port) -> bool:
    """Whether a port has an address of one of the memory's ports."""
    return port.interface in _MEMORIES and port.signal in ("ARADDR", "AWADDR")


def _addresses(ports: list[Port], half_bytes: int) -> Iterator[str]:
    """Addresses in front of each of two memory ports (`interleave.port_address`)."""
    yield "    // Half of the memory's blocks lie behind each port, one after the other."
    for port in filter(_is_spread, ports):
        wire, begin = f"core_{port.core}", half_bytes * _MEMORIES.index(port.interface)
        added = f" + {port.bits}'d{begin}" if begin else ""
        yield f"    wire {_range(port.bits)}{wire};"
        yield (
            f"    assign {port.name} = {{1'b0, {wire}[{port.bits - 1}:{BLOCK_BITS + 1}], "
            f"{wire}[{BLOCK_BITS - 1}:0]}}{added};"
        )
        yield f"    wire unused_{port.name} = &{{1'b0, {wire}[{BLOCK_BITS}]}};"


def _connection(core: CoreSpec, port: Port) -> str:
    if core.memory_ports > 1 and _is_spread(port):
        return f"core_{port.core}"
    if port.bits == port.core_bits:
        return port.name
    if port.is_input:
        return f"{port.name}[{port.core_bits - 1}:0]"
    return f"core_{port.core}"


def _wires(ports: list[Port]) -> Iterator[str]:
    """Wires of the outputs that are narrower in the core, and their widening."""
    for port in ports:
        if port.bits == port.core_bits:
            continue
        if port.is_input:
            unused = f"{port.name}[{port.bits - 1}:{port.core_bits}]"
            yield f"    wire unused_{port.name} = &{{1'b0, {unused}}};"
            continue
        yield f"    wire {_range(port.core_bits)}core_{port.core};"
        yield (f"    assign {port.name} = {{{port.bits - port.core_bits}'d0, core_{port.core}}};")
