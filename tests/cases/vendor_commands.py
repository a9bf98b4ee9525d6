"""The commands of Vivado that packages use, with their options, and the order that they need.

Sources: UG835 (Vivado commands), UG1118 (packaging of IP), UG994 (block designs), UG903 (XDC).
"""

import re

# Options with a value, options without one, and the least and most other words.
COMMANDS = {
    "create_project": ({"-part"}, {"-force"}, 2, 2),
    "add_files": ({"-fileset"}, {"-norecurse"}, 1, 1),
    "current_project": (set(), set(), 0, 0),
    "current_fileset": (set(), set(), 0, 0),
    "update_compile_order": ({"-fileset"}, set(), 0, 0),
    "close_project": (set(), {"-delete"}, 0, 0),
    "get_files": (set(), set(), 1, 1),
    "set_property": ({"-dict"}, set(), 1, 3),
    "create_ip": ({"-name", "-vendor", "-library", "-module_name"}, set(), 0, 0),
    "get_ips": (set(), set(), 1, 1),
    "generate_target": (set(), set(), 2, 2),
    "ipx::package_project": (
        {"-root_dir", "-vendor", "-library", "-taxonomy", "-set_current"},
        {"-import_files"},
        0,
        0,
    ),
    "ipx::unload_core": (set(), set(), 1, 1),
    "ipx::edit_ip_in_project": ({"-upgrade", "-name", "-directory"}, set(), 1, 1),
    "ipx::current_core": (set(), set(), 0, 0),
    "ipx::associate_bus_interfaces": ({"-busif", "-clock", "-reset"}, set(), 1, 1),
    "ipx::infer_bus_interface": (set(), set(), 3, 3),
    "ipx::remove_bus_interface": (set(), set(), 2, 2),
    "ipx::add_bus_interface": (set(), {"-quiet"}, 2, 2),
    "ipx::get_bus_interfaces": ({"-of_objects"}, set(), 1, 1),
    "ipx::add_port_map": (set(), {"-quiet"}, 2, 2),
    "ipx::add_memory_map": (set(), {"-quiet"}, 2, 2),
    "ipx::add_address_block": (set(), {"-quiet"}, 2, 2),
    "ipx::add_register": (set(), set(), 2, 2),
    "ipx::add_register_parameter": (set(), set(), 2, 2),
    "ipx::create_xgui_files": (set(), set(), 1, 1),
    "ipx::update_checksums": (set(), set(), 1, 1),
    "ipx::check_integrity": (set(), {"-kernel"}, 1, 1),
    "ipx::update_source_project_archive": ({"-component"}, set(), 0, 0),
    "ipx::save_core": (set(), set(), 1, 1),
    "package_xo": (
        {"-xo_path", "-kernel_name", "-ctrl_protocol", "-ip_directory"},
        {"-force"},
        0,
        0,
    ),
    "create_bd_design": (set(), set(), 1, 1),
    "create_bd_cell": ({"-type", "-vlnv", "-reference"}, set(), 1, 1),
    "create_bd_port": ({"-dir", "-type"}, set(), 1, 1),
    "create_bd_intf_port": ({"-mode", "-vlnv"}, set(), 1, 1),
    "get_bd_cells": (set(), set(), 1, 1),
    "get_bd_ports": (set(), set(), 1, 1),
    "get_bd_pins": (set(), set(), 1, 1),
    "get_bd_intf_ports": (set(), set(), 1, 1),
    "get_bd_intf_pins": (set(), set(), 1, 1),
    "get_bd_addr_spaces": (set(), set(), 1, 1),
    "get_bd_addr_segs": (set(), set(), 1, 1),
    "connect_bd_net": (set(), set(), 2, 99),
    "connect_bd_intf_net": (set(), set(), 2, 2),
    "apply_bd_automation": ({"-rule", "-config"}, set(), 1, 1),
    "assign_bd_address": ({"-offset", "-range", "-target_address_space"}, set(), 1, 1),
    "exclude_bd_addr_seg": ({"-target_address_space"}, set(), 1, 1),
    "validate_bd_design": (set(), set(), 0, 0),
    "save_bd_design": (set(), set(), 0, 0),
    "make_wrapper": ({"-files"}, {"-top", "-import"}, 0, 0),
    "launch_runs": ({"-to_step", "-jobs"}, set(), 1, 1),
    "wait_on_run": (set(), set(), 1, 1),
    "open_run": (set(), set(), 1, 1),
    "source": (set(), set(), 1, 1),
    "report_timing_summary": ({"-file"}, set(), 0, 0),
    "report_utilization": ({"-file"}, {"-hierarchical"}, 0, 0),
    "write_hw_platform": ({"-file"}, {"-fixed", "-include_bit", "-force"}, 0, 0),
    "file": (set(), {"-force"}, 3, 3),
}

CONSTRAINTS = {
    "set_property": (set(), set(), 3, 3),
    "create_clock": ({"-name", "-period"}, set(), 1, 1),
    "get_ports": (set(), set(), 1, 1),
    "get_pins": (set(), set(), 1, 1),
    "get_clocks": ({"-of_objects"}, set(), 0, 0),
    "set_false_path": ({"-to"}, set(), 0, 0),
    "set_max_delay": ({"-from", "-to"}, {"-datapath_only"}, 1, 1),
}

# What has to come before each command, if it comes at all.
BEFORE = {
    "add_files": {"create_project"},
    "create_ip": {"create_project"},
    "generate_target": {"create_ip", "set_property"},
    "ipx::package_project": {"add_files", "update_compile_order"},
    "ipx::edit_ip_in_project": {"ipx::package_project", "ipx::unload_core"},
    "ipx::current_core": {"ipx::package_project"},
    "ipx::add_register": {"ipx::add_address_block"},
    "ipx::add_address_block": {"ipx::add_memory_map"},
    "ipx::check_integrity": {"ipx::update_checksums"},
    "ipx::save_core": {"ipx::update_checksums"},
    "package_xo": {"ipx::save_core"},
    "create_bd_design": {"create_project", "add_files", "update_compile_order"},
    "create_bd_cell": {"create_bd_design"},
    "assign_bd_address": {"connect_bd_intf_net"},
    "validate_bd_design": {"assign_bd_address"},
    "save_bd_design": {"validate_bd_design"},
    "make_wrapper": {"save_bd_design"},
    "launch_runs": {"make_wrapper"},
    "wait_on_run": {"launch_runs"},
    "open_run": {"wait_on_run"},
    "file": {"open_run"},
    "write_hw_platform": {"open_run"},
}
# What may not come after each command.
LAST = {
    "package_xo": set(COMMANDS),
    "validate_bd_design": {
        "create_bd_cell",
        "connect_bd_net",
        "connect_bd_intf_net",
        "assign_bd_address",
        "create_bd_port",
    },
    "ipx::save_core": {"ipx::add_register", "ipx::add_port_map", "ipx::associate_bus_interfaces"},
    "generate_target": set(),
}

_HANDLE = re.compile(r"@(\d+)")


class Call:
    """A call with its options and other words."""

    def __init__(self, words, table):
        self.name, *arguments = words
        valued, flags, least, most = table[self.name]
        self.options, self.flags, self.words = {}, set(), []
        rest = iter(arguments)
        for each in rest:
            if each in valued:
                assert each not in self.options, f"{self.name} has {each} twice"
                self.options[each] = next(rest, None)
                assert self.options[each] is not None, f"{self.name} {each} needs a value"
            elif each in flags:
                self.flags.add(each)
            else:
                assert not re.fullmatch(r"-[a-z_]+", each), f"{self.name} has no option {each}"
                self.words.append(each)
        count = len(self.words)
        assert least <= count <= most, f"{self.name} takes {least}..{most} words, not {count}"


class Calls:
    """The calls of a script, checked one by one and in their order."""

    def __init__(self, calls, table=COMMANDS):
        self.all = [Call(each, table) for each in calls]
        seen = set()
        for each in self.all:
            missing = BEFORE.get(each.name, set()) - seen
            assert not missing, f"{each.name} comes before {', '.join(sorted(missing))}"
            for name in seen:
                assert each.name not in LAST.get(name, ()), f"{each.name} comes after {name}"
            seen.add(each.name)

    def named(self, *names):
        return [each for each in self.all if each.name in names]

    def of(self, word):
        """The call whose result a word is."""
        found = _HANDLE.fullmatch(word)
        assert found, f"{word} is no object"
        return self.all[int(found[1])]
