"""Checks of packages: block designs, kernels, linker settings and constraints.

They replay the calls of `cases.tcl_runs` on tables of what the vendor's tools know.
"""

import re
from pathlib import PurePath

from cases.tcl_runs import run_tcl, split_list
from cases.vendor_commands import COMMANDS, CONSTRAINTS, Calls
from cases.vendor_modules import CLOCK_OF, CLOCKED, SEGMENTS, SPACES, ip_of, module_of

from fpgapipe.hw.hls_models.model.registers import RegisterMap

AURORA_SETTINGS = {
    "C_AURORA_LANES",
    "C_LINE_RATE",
    "C_REFCLK_FREQUENCY",
    "C_INIT_CLK",
    "interface_mode",
    "flow_mode",
    "crc_mode",
    "drp_mode",
    "C_USE_BYTESWAP",
    "SupportLevel",
    "CHANNEL_ENABLE",
    "C_START_QUAD",
    "C_START_LANE",
    "C_REFCLK_SOURCE",
}


def calls_of(text, interpreter="python"):
    return Calls(run_tcl(text, COMMANDS, interpreter))


def settings_of(call):
    """Settings of a set_property -dict, without the prefix CONFIG."""
    words = split_list(call.options["-dict"])
    assert len(words) % 2 == 0
    assert all(each.startswith("CONFIG.") for each in words[::2])
    return {
        name.removeprefix("CONFIG."): value
        for name, value in zip(words[::2], words[1::2], strict=True)
    }


def check_sources(calls, files):
    """Each file that is added is there, or is the build's core."""
    for each in calls.named("add_files"):
        for name in split_list(each.words[0]):
            if name.startswith("../../../hardware/"):
                assert PurePath(name).name.startswith("core_"), name
            else:
                assert name in files, f"{name} is no file of the package"


def check_ips(calls, links):
    """The Auroras have the settings of the board and the bridge."""
    names = {each.options["-module_name"] for each in calls.named("create_ip")}
    for each in calls.named("create_ip"):
        assert each.options["-name"] == "aurora_64b66b"
    found = {}
    for each in calls.named("set_property"):
        if "-dict" in each.options and calls.of(each.words[0]).name == "get_ips":
            name = calls.of(each.words[0]).words[0]
            assert name in names, f"no IP named {name}"
            found[name] = settings_of(each)
            assert set(found[name]) <= AURORA_SETTINGS, found[name].keys() - AURORA_SETTINGS
    assert set(found) == names == {f"aurora_64b66b_{each.number}" for each in links}
    for each in links:
        values, port = found[f"aurora_64b66b_{each.number}"], each.transceiver
        assert int(values["C_AURORA_LANES"]) == port.lanes == each.bridge.lanes
        rate = float(values["C_LINE_RATE"]) * 1e9 * port.lanes
        assert abs(rate / each.line_rate_bits_per_s - 1) < 1e-9
        assert float(values["C_REFCLK_FREQUENCY"]) * 1e6 == port.reference_clock_hz
        assert (values["interface_mode"], values["flow_mode"]) == ("Framing", "None")
        if port.sites:
            assert values["CHANNEL_ENABLE"].split() == port.sites
            assert values["C_START_LANE"] == port.sites[0], "C_START_LANE is not the first lane"
            assert values["C_START_QUAD"] == f"Quad_{port.quad}"
            column, row = re.fullmatch(r"X(\d+)Y(\d+)", port.quad).groups()
            first = 4 * int(row)
            quads = {f"X{column}Y{first + lane}" for lane in range(4)}
            assert set(port.sites) <= quads, f"{port.name} is not in quad {port.quad}"


class Design:
    """A block design, with cells, nets and addresses, put together from calls."""

    def __init__(self, calls, files, board):
        self.calls, self.board = calls, board
        self.cells, self.kinds, self.settings = {}, {}, {}
        self.ports, self.interface_ports = {}, {}
        self.nets, self.joined = {}, {}
        self.addresses = []
        modules = dict(module_of(text)[:2] for name, text in files.items() if _is_module(name))
        self._create(modules)
        self._connect()
        self._check_connections()
        self._check_clocks()
        self._check_addresses()

    def _create(self, modules):
        for each in self.calls.named("create_bd_cell"):
            (name,) = each.words
            assert name not in self.cells, f"cell {name} is there twice"
            if each.options["-type"] == "module":
                kind = each.options["-reference"]
                assert kind in modules, f"no module {kind}"
                self.cells[name] = modules[kind]
            else:
                vendor, library, kind = each.options["-vlnv"].split(":")
                assert (vendor, library) == ("xilinx.com", "ip")
                self.cells[name] = None
            self.kinds[name] = kind
        for each in self.calls.named("set_property"):
            if "-dict" in each.options and self.calls.of(each.words[0]).name == "get_bd_cells":
                name = self.calls.of(each.words[0]).words[0]
                assert name in self.cells, f"no cell {name}"
                self.settings.setdefault(name, {}).update(settings_of(each))
        for name, cell in self.cells.items():
            if cell is None:
                values = self.settings.get(name, {})
                self.cells[name] = ip_of(self.kinds[name], values)
                unknown = values.keys() - self.cells[name].settings
                assert not unknown, f"{name} has no setting {', '.join(unknown)}"
        for each in self.calls.named("create_bd_port"):
            # Inside the design, an input port is a driver.
            self.ports[each.words[0]] = {"I": "O", "O": "I"}[each.options["-dir"]]
        for each in self.calls.named("create_bd_intf_port"):
            kind = re.fullmatch(r"xilinx\.com:interface:(\w+)_rtl:1\.0", each.options["-vlnv"])[1]
            mode = {"Slave": "Master", "Master": "Slave"}[each.options["-mode"]]
            self.interface_ports[each.words[0]] = (mode, kind)

    def _pin(self, word):
        call = self.calls.of(word)
        (name,) = call.words
        if call.name == "get_bd_ports":
            assert name in self.ports, f"no port {name}"
            return name, self.ports[name]
        assert call.name == "get_bd_pins"
        cell, _, pin = name.partition("/")
        assert cell in self.cells, f"no cell {cell}"
        assert pin in self.cells[cell].pins, f"{cell} has no pin {pin}"
        return name, self.cells[cell].pins[pin]

    def _interface(self, word):
        call = self.calls.of(word)
        (name,) = call.words
        if call.name == "get_bd_intf_ports":
            assert name in self.interface_ports, f"no interface port {name}"
            return name, *self.interface_ports[name]
        assert call.name == "get_bd_intf_pins"
        cell, _, bus = name.partition("/")
        assert cell in self.cells, f"no cell {cell}"
        assert bus in self.cells[cell].interfaces, f"{cell} has no interface {bus}"
        return name, *self.cells[cell].interfaces[bus]

    def _connect(self):
        for each in self.calls.named("connect_bd_net"):
            (driver, way), *loads = [self._pin(word) for word in each.words]
            assert way == "O", f"{driver} drives nothing"
            for load, way in loads:
                assert way == "I", f"{load} is driven and a driver"
                assert load not in self.nets, f"{load} has two drivers"
                self.nets[load] = driver
        for each in self.calls.named("connect_bd_intf_net"):
            (one, mode, kind), (other, second, same) = map(self._interface, each.words)
            assert {mode, second} == {"Master", "Slave"}, f"{one} and {other} have one mode"
            # A differential clock has another name for its type at the edge of a design.
            assert kind == same, f"{one} is {kind} and {other} is {same}"
            for name, partner in ((one, other), (other, one)):
                assert name not in self.joined, f"{name} is joined twice"
                self.joined[name] = partner

    def _check_connections(self):
        for name, cell in self.cells.items():
            missing = {pin for pin in cell.needed if f"{name}/{pin}" not in self.nets}
            assert not missing, f"{name} lacks {', '.join(sorted(missing))}"
            for bus in cell.interfaces:
                assert f"{name}/{bus}" in self.joined, f"{name}/{bus} is joined to nothing"
        for name in self.interface_ports:
            assert name in self.joined, f"{name} is joined to nothing"
        drivers = set(self.nets.values())
        for name, way in self.ports.items():
            assert name in (drivers if way == "O" else self.nets), f"{name} is not connected"

    def clock(self, end):
        """The pin that drives the clock of an interface."""
        name, _, bus = end.partition("/")
        pin = CLOCK_OF.get((self.kinds[name], bus))
        if pin is None:
            pin = next(clock for clock, buses in self.cells[name].clocks.items() if bus in buses)
        return self.nets.get(f"{name}/{pin}", f"{name}/{pin}")

    def _check_clocks(self):
        """Each interface has the clock of its partner, or a SmartConnect has both."""
        for end, partner in self.joined.items():
            name, _, bus = end.partition("/")
            if not bus or self.cells[name].interfaces[bus][1] not in CLOCKED:
                continue
            other = partner.partition("/")[0]
            if self.kinds[name] == "smartconnect":
                continue
            if self.kinds[other] == "smartconnect":
                clocks = {
                    self.nets[f"{other}/{pin}"] for pin in self.cells[other].pins if "clk" in pin
                }
                assert self.clock(end) in clocks, f"{other} lacks the clock of {end}"
            else:
                assert self.clock(end) == self.clock(partner), f"{end} has another clock"

    def _slaves(self, end):
        """Slaves that a master reaches, through a SmartConnect or directly."""
        partner = self.joined[end]
        cell = partner.partition("/")[0]
        if self.kinds[cell] != "smartconnect":
            return {partner}
        return {
            self.joined[f"{cell}/{bus}"]
            for bus, (mode, _) in self.cells[cell].interfaces.items()
            if mode == "Master"
        }

    def _check_addresses(self):
        for each in self.calls.named("assign_bd_address"):
            space = self.calls.of(each.options["-target_address_space"]).words[0]
            segment = self.calls.of(each.words[0]).words[0]
            offset, size = int(each.options["-offset"], 16), int(each.options["-range"], 16)
            assert size >= 4096, f"{segment} has {size} bytes, and a segment has at least 4096"
            assert not size & (size - 1), f"{segment} has {size} bytes, no power of two"
            assert offset % size == 0, f"{segment} is not aligned"
            cell, _, rest = space.partition("/")
            master = SPACES.get(self.kinds[cell], {rest: rest})[rest]
            target, _, name = segment.partition("/")
            known = SEGMENTS.get(self.kinds[target], {})
            slave = known.get(name) or name.removesuffix("/reg0")
            assert known.get(name) or name == f"{slave}/reg0", f"no segment {segment}"
            reached = self._slaves(f"{cell}/{master}")
            assert f"{target}/{slave}" in reached, f"{space} does not reach {segment}"
            for other, begin, end, _ in self.addresses:
                apart = other != space or offset >= end or offset + size <= begin
                assert apart, f"{segment} overlaps in {space}"
            self.addresses.append((space, offset, offset + size, segment))
        masters = {
            f"{name}/{bus}"
            for name, cell in self.cells.items()
            for bus, (mode, kind) in cell.interfaces.items()
            if (mode, kind) == ("Master", "aximm") and self.kinds[name] != "smartconnect"
        }
        assert len({space for space, *_ in self.addresses}) == len(masters)

    def address_of(self, space, segment):
        """Begin and end of the addresses of a segment."""
        return next(
            (begin, end)
            for each, begin, end, name in self.addresses
            if (each, name) == (space, segment)
        )


def _is_module(name):
    return name.endswith(".v") and name.startswith("fpgapipe_")


def check_kernel(calls, files, core, kernel="fpgapipe_core"):
    """The kernel has all interfaces with their clock, and the registers of the gateware."""
    name, cell, _ = module_of(files[f"{kernel}.v"])
    associated = {}
    for each in calls.named("ipx::associate_bus_interfaces"):
        assert each.options["-clock"] == "ap_clk"
        associated[each.options.get("-busif", "reset")] = each.options.get("-reset")
    assert associated.keys() == {*cell.interfaces, "reset"}
    assert associated["reset"] == "ap_rst_n"
    names = {}
    for each in calls.named("ipx::add_register"):
        block = calls.of(each.words[1])
        assert (block.name, block.words[0]) == ("ipx::add_address_block", "reg0")
        assert calls.of(block.words[1]).words[0] == "S_AXI_CONTROL"
        names[id(each)] = {"name": each.words[0]}
    pointers = {}
    for each in calls.named("set_property"):
        target = calls.of(each.words[-1]) if each.words[-1].startswith("@") else None
        if target is not None and target.name == "ipx::add_register":
            key, value = each.words[:2]
            assert key in ("description", "address_offset", "size"), key
            names[id(target)][key] = value
        if target is not None and target.name == "ipx::add_register_parameter":
            assert target.words[0] == "ASSOCIATED_BUSIF"
            pointers[calls.of(target.words[1]).words[0]] = each.words[1]
    found = []
    for each in names.values():
        offset, bits = int(each["address_offset"], 16), int(each["size"])
        if bits == 64:
            found += [(f"{each['name']}_LO", offset), (f"{each['name']}_HI", offset + 4)]
        else:
            assert bits == 32
            found.append((each["name"], offset))
    assert found == [(each.name, each.offset) for each in RegisterMap(core)]
    buses = dict(zip(("MEMORY_BASE", "MEMORY_LIMIT"), ("m_axi", "m_axi1"), strict=True))
    assert pointers == dict([*buses.items()][: core.memory_ports])
    (pack,) = calls.named("package_xo")
    assert pack.options["-kernel_name"] == name
    assert pack.options["-ctrl_protocol"] == "user_managed"
    (project,) = calls.named("ipx::package_project")
    assert pack.options["-ip_directory"] == project.options["-root_dir"]


def check_aurora_kernel(calls, files, link):
    """The kernel of an Aurora has its streams with their clock, the lanes and the clock pins."""
    name = f"fpgapipe_aurora_{link.number}"
    _, cell, widths = module_of(files[f"{name}.v"])
    kinds = {bus: kind for bus, (_, kind) in cell.interfaces.items()}
    assert kinds == {
        "tx_axis": "axis",
        "rx_axis": "axis",
        "clock_axis": "unframed axis",
        "gt_port": "gt",
        "gt_refclk": "diff_clock",
    }
    clocked = {
        each.options["-busif"]
        for each in calls.named("ipx::associate_bus_interfaces")
        if "-busif" in each.options
    }
    assert clocked == {"tx_axis", "rx_axis", "clock_axis"}
    assert [each.words[0] for each in calls.named("ipx::remove_bus_interface")] == ["init_clk"]
    mapped = {}
    for each in calls.named("set_property"):
        if each.words[0] == "physical_name":
            port = calls.of(each.words[2])
            mapped[port.words[0]] = each.words[1]
            assert each.words[1] in widths, f"no port {each.words[1]}"
    assert mapped == {
        "GRX_P": "gt_rxp_in",
        "GRX_N": "gt_rxn_in",
        "GTX_P": "gt_txp_out",
        "GTX_N": "gt_txn_out",
        "CLK_P": "gt_refclk_p",
        "CLK_N": "gt_refclk_n",
    }
    assert widths["gt_rxp_in"] == link.transceiver.lanes
    (pack,) = calls.named("package_xo")
    assert pack.options["-kernel_name"] == name
    assert pack.options["-ctrl_protocol"] == "ap_ctrl_none"


def config_of(text):
    """Sections of linker settings: lists of keys and values."""
    sections, here = {"": []}, ""
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            here = line.strip("[]")
            sections[here] = []
            continue
        key, equals, value = line.partition("=")
        assert equals, line
        sections[here].append((key, value))
    return sections


def check_link_config(text, files, target):
    """The linker joins ports that the kernels have to names that the board file has."""
    sections = config_of(text)
    assert sections.keys() == {"", "connectivity"}
    head = dict(sections[""])
    values = target.packaging.vitis
    assert head["platform"] == values.platform
    assert float(head["kernel_frequency"]) * 1e6 == target.clk_hz
    cells = dict(module_of(each)[:2] for name, each in files.items() if _is_module(name))
    nodes = {f"fpgapipe_core_{node.number}": node for node in target.nodes}
    instances, streams, connected, placed, reached, joined = {}, set(), {}, {}, [], []
    memory_ports = set()
    for key, value in sections["connectivity"]:
        if key == "nk":
            kernel, count, names = value.split(":")
            assert int(count) == len(names.split("."))
            assert kernel in cells, f"no kernel {kernel}"
            for name in names.split("."):
                assert name not in instances
                instances[name] = cells[kernel]
        elif key == "sp":
            end, memory = value.split(":", 1)
            name, bus = end.split(".")
            assert instances[name].interfaces[bus] == ("Master", "aximm")
            kind, first, last = re.fullmatch(r"(HBM|DDR)\[(\d+):(\d+)\]", memory).groups()
            group = next(each for each in target.board.memory if each.name == values.memory)
            channels = nodes[name].channels or range(group.count)
            buses = [each for each in ("m_axi", "m_axi1") if each in instances[name].interfaces]
            half = len(channels) // len(buses)
            begin = buses.index(bus) * half
            assert range(int(first), int(last) + 1) == channels[begin : begin + half]
            assert group.kind.startswith(kind.lower())
            reached.append(channels[begin : begin + half])
            memory_ports.add((name, bus))
        elif key == "slr":
            name, die = value.split(":")
            assert name in instances
            assert die in {each.name for each in target.board.fabric.dies}
            placed[name] = die
        elif key == "stream_connect":
            source, sink = (each.split(".") for each in value.split(":"))
            joined.append((tuple(source), tuple(sink)))
            kinds = {instances[name].interfaces[bus][1] for name, bus in (source, sink)}
            assert kinds in ({"axis"}, {"unframed axis"}), value
            for (name, bus), mode in ((source, "Master"), (sink, "Slave")):
                assert instances[name].interfaces[bus][0] == mode, f"{name}.{bus}"
                assert (name, bus) not in streams, f"{name}.{bus} is joined twice"
                streams.add((name, bus))
        else:
            assert key == "connect", key
            one, other = value.split(":")
            inner = one if one.split("/")[0] in instances else other
            name, port = inner.split("/")
            outer = other if inner == one else one
            assert port in instances[name].interfaces or port in instances[name].pins, inner
            connected[name, port] = outer
    assert streams == {
        (name, bus)
        for name, cell in instances.items()
        for bus, (_, kind) in cell.interfaces.items()
        if kind in ("axis", "unframed axis")
    }
    expected = {}
    links = [link for node in target.nodes for link in node.links]
    for link in links:
        name = f"fpgapipe_aurora_{link.number}"
        expected[name, "gt_refclk"] = link.transceiver.platform_clock
        expected[name, "gt_port"] = link.transceiver.platform_lanes
        expected[name, "init_clk"] = values.init_clock
    assert connected == expected
    assert len({each.transceiver.platform_lanes for each in links}) == len(links)
    assert memory_ports == {
        (name, bus)
        for name in nodes
        for bus, (mode, kind) in instances[name].interfaces.items()
        if (mode, kind) == ("Master", "aximm")
    }
    assert len(reached) == len(memory_ports)
    assert len({each for one in reached for each in one}) == sum(map(len, reached)), "shared memory"
    homes = {group.name: group.die for group in target.board.links}
    auroras = {
        f"fpgapipe_aurora_{link.number}": homes[link.transceiver.link]
        for link in links
        if homes[link.transceiver.link]
    }
    cores = {name: die for name, die in placed.items() if name in nodes}
    assert placed == cores | auroras
    if target.channels:
        assert cores == {name: node.die for name, node in nodes.items()}
    return joined


def constraints_of(text, interpreter="python"):
    calls = Calls(run_tcl(text, CONSTRAINTS, interpreter), CONSTRAINTS)
    for each in calls.named("set_property"):
        assert each.words[0] in ("PACKAGE_PIN", "IOSTANDARD"), each.words[0]
    return calls


def check_board_constraints(text, design, target, interpreter="python"):
    """Pins, standards and clocks are those of the board file, and no port lacks its pin."""
    calls = constraints_of(text, interpreter)
    pins, standards = {}, {}
    for each in calls.named("set_property"):
        port = calls.of(each.words[2]).words[0]
        table = pins if each.words[0] == "PACKAGE_PIN" else standards
        assert port not in table, f"{port} has two pins"
        table[port] = each.words[1]
    assert len(set(pins.values())) == len(pins), "a pin is used twice"
    clocks = {
        calls.of(each.words[0]).words[0]: float(each.options["-period"])
        for each in calls.named("create_clock")
    }
    expected, expected_clocks, levels = {}, {}, {}
    for link in target.links:
        port = link.transceiver
        name = f"{port.link}{port.port}"
        expected |= dict(
            zip((f"{name}_refclk_clk_p", f"{name}_refclk_clk_n"), port.clock_pins, strict=True)
        )
        expected_clocks[f"{name}_refclk_clk_p"] = round(1e9 / port.reference_clock_hz, 3)
        for way, listed in (("grx", port.input_pins), ("gtx", port.output_pins)):
            for lane in range(port.lanes):
                expected[f"{name}_{way}_p[{lane}]"] = listed[2 * lane]
                expected[f"{name}_{way}_n[{lane}]"] = listed[2 * lane + 1]
        for each in port.constant_pins:
            expected[f"{name}_{each.name}_pin"] = each.pin
            levels[f"{name}_{each.name}_pin"] = (each.standard, each.value)
        assert design.interface_ports[f"{name}_refclk"] == ("Master", "diff_clock")
        assert design.interface_ports[name] == ("Slave", "gt")
    assert pins == expected
    assert clocks == expected_clocks
    assert standards == {name: standard for name, (standard, _) in levels.items()}
    for name, (_, value) in levels.items():
        driver = design.nets[name].partition("/")[0]
        assert design.settings[driver]["CONST_VAL"] == str(value)


def check_clock_constraints(text, link, target, interpreter="python"):
    """Every pair of the three clocks has a limit of the faster one's period."""
    calls = constraints_of(text, interpreter)
    clocks = {"ap_clk": target.clk_hz, "aurora/user_clk_out": link.user_clock_hz, "init_clk": 1e8}
    found = {}
    for each in calls.named("set_max_delay"):
        assert "-datapath_only" in each.flags
        ends = []
        for way in ("-from", "-to"):
            clock = calls.of(each.options[way])
            ends.append(calls.of(clock.options["-of_objects"]).words[0])
        found[tuple(ends)] = float(each.words[0])
    assert found == {
        (one, other): round(1e9 / max(clocks[one], clocks[other]), 3)
        for one in clocks
        for other in clocks
        if one != other
    }
