"""A small xclbin, as XRT reads it: a kernel whose instances are connected to memories.

Source: XRT's xclbin.h (struct axlf and the sections), release 202210.2.13.
"""

import struct

EMBEDDED_METADATA, MEM_TOPOLOGY, CONNECTIVITY, IP_LAYOUT = 2, 6, 7, 8
GROUP_TOPOLOGY, GROUP_CONNECTIVITY = 26, 27
IP_KERNEL, DDR4 = 1, 1
UUID = bytes(range(1, 17))


def xclbin(kernel="fpgapipe_core", *, connected=True, banks=1, instances=1, ports=1):
    """Bytes of an xclbin without a bitstream.

    Several banks form a group behind them, as ``v++`` makes one for ``HBM[0:1]``. Of several
    instances or memory ports, each has a bank of its own instead.
    """
    masters = (("m_axi", "MEMORY_BASE", 0x68), ("m_axi1", "MEMORY_LIMIT", 0x70))[:ports]
    names = [f"{kernel}_{index}" for index in range(instances)]
    placed = "".join(
        f"""<instance name="{name}"><addrRemap base="{0x1800000 + 0x10000 * index:#x}"
 range="0x1000" port="S_AXI_CONTROL"/></instance>"""
        for index, name in enumerate(names)
    )
    masters_of = "".join(
        f"""<port name="{port}" mode="master" range="0xFFFFFFFFFFFFFFFF" dataWidth="512"
 portType="addressable" base="0x0"/>"""
        for port, _, _ in masters
    ) + "".join(
        f"""<arg name="{name}" addressQualifier="1" id="{number}" port="{port}" size="0x8"
 offset="{offset:#x}" hostOffset="0x0" hostSize="0x8" type="void*"/>"""
        for number, (port, name, offset) in enumerate(masters)
    )
    xml = f"""<?xml version="1.0" encoding="UTF-8"?>
<project name="fpgapipe"><platform vendor="x" boardid="x" name="x" featureRomTime="0">
<device name="fpga0"><core name="OCL_REGION_0" target="bitstream" type="clc_region">
<kernel name="{kernel}" language="ip" vlnv="fpgapipe:fpgapipe:{kernel}:1.0" attributes=""
 preferredWorkGroupSizeMultiple="0" workGroupSize="1" hwControlProtocol="user_managed"
 interrupt="true">
<port name="S_AXI_CONTROL" mode="slave" range="0x1000" dataWidth="32" portType="addressable"
 base="0x0"/>
{masters_of}
{placed}</kernel></core></device></platform></project>"""
    layout = struct.pack("<i4x", instances) + b"".join(
        struct.pack(
            "<IIQ64s", IP_KERNEL, 0x1, 0x1800000 + 0x10000 * index, f"{kernel}:{name}".encode()
        )
        for index, name in enumerate(names)
    )
    groups = {}
    if instances > 1:
        assert banks == instances
        memory, links = _memories(banks), _links([(each, each) for each in range(banks)])
    elif ports > 1:
        assert banks == ports
        memory, links = _memories(banks), _links([(each, 0, each) for each in range(banks)])
    else:
        memory = _memories(banks)
        links = _links([(0, bank) for bank in range(banks) if connected])
        if banks > 1:
            groups = {
                GROUP_TOPOLOGY: _memories(banks, is_grouped=True),
                GROUP_CONNECTIVITY: _links([(0, bank) for bank in range(banks + 1)]),
            }
    return _axlf(
        {
            EMBEDDED_METADATA: xml.encode(),
            MEM_TOPOLOGY: memory,
            CONNECTIVITY: links,
            IP_LAYOUT: layout,
            **groups,
        }
    )


def _memories(banks, *, is_grouped=False):
    size_kb = 1 << 20
    each = [(size_kb, index * size_kb * 1024, b"bank%d" % index) for index in range(banks)]
    each += [(banks * size_kb, 0, b"all banks")] * is_grouped
    return struct.pack("<i4x", len(each)) + b"".join(
        struct.pack("<BB6xQQ16s", DDR4, 1, *memory) for memory in each
    )


def _links(links):
    """Connections of instances and memories, by their indices; of argument 0 if none is given."""
    each = [link if len(link) == 3 else (0, *link) for link in links]
    return struct.pack("<i", len(each)) + b"".join(struct.pack("<iii", *link) for link in each)


def _axlf(sections):
    head = 456 + 40 * len(sections)
    table, data = b"", b""
    for kind, text in sections.items():
        data += bytes(-(head + len(data)) % 8)
        table += struct.pack("<I16s4xQQ", kind, b"", head + len(data), len(text))
        data += text
    header = struct.pack(
        "<QQQHBBHH16s64s16s16sI4x",
        head + len(data), 1, 0, 0, 2, 1, 0, 0, bytes(16), b"", UUID, b"", len(sections),
    )  # fmt: skip
    return (
        b"xclbin2\0"
        + struct.pack("<i28s256sQ", -1, b"\xff" * 28, bytes(256), 1)
        + header
        + (table + data)
    )
