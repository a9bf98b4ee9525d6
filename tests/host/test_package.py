"""Packages for vendors' tools: run as Tcl with checks, linted, compared with the boards."""

import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from cases.package_cases import (
    DEVICES,
    files_of,
    files_of_target,
    shared_board,
    target_of,
    verilog,
)
from cases.tcl_runs import TclError, interpreters, run_tcl
from cases.vendor_checks import (
    Design,
    calls_of,
    check_aurora_kernel,
    check_board_constraints,
    check_clock_constraints,
    check_ips,
    check_kernel,
    check_link_config,
    check_sources,
    constraints_of,
)
from cases.vendor_commands import COMMANDS, CONSTRAINTS

from fpgapipe import __version__
from fpgapipe.boards.library import board_names, load_board
from fpgapipe.errors import UserError
from fpgapipe.host.package.block_design import TIMING_CHECK, TIMING_CHECK_TEXT
from fpgapipe.host.package.clocks import core_clocks, other_clocks
from fpgapipe.host.package.package import makefile
from fpgapipe.host.package.vitis import JOIN
from fpgapipe.hw.hls_models.model.registers import ADDRESS_BITS
from fpgapipe.sim_tb.native.verilate import verilator_root

GOLDEN = Path(__file__).parents[1] / "data" / "package"
WAYS = interpreters()
BY_BOARD = pytest.mark.parametrize(
    ("name", "ports"), DEVICES, ids=[f"{name}-{len(ports)}" for name, ports in DEVICES]
)


def flow_of(name):
    return load_board(name).packaging.flow


def devices(flow):
    found = [each for each in DEVICES if flow_of(each[0]) == flow]
    ids = [f"{name}-{len(ports)}" for name, ports in found]
    return pytest.mark.parametrize(("name", "ports"), found, ids=ids)


def test_every_packaged_board_is_here():
    packaged = {name for name in board_names() if load_board(name).packaging}
    assert packaged == {name for name, _ in DEVICES}


@pytest.mark.skipif(len(WAYS) == 1, reason="there is neither tclsh nor Python's tkinter")
@BY_BOARD
def test_the_ways_to_run_tcl_agree(name, ports):
    """tclsh and tkinter, where they are, see the same calls as the interpreter of the tests."""
    for file, text in files_of(name, ports).items():
        if file == TIMING_CHECK:
            continue  # it is a program; see its own test
        table = {".tcl": COMMANDS, ".xdc": CONSTRAINTS}.get(Path(file).suffix)
        if table:
            runs = [run_tcl(text, table, way) for way in WAYS]
            assert all(each == runs[0] for each in runs), file


@BY_BOARD
def test_scripts_use_known_commands_in_order(name, ports):
    files = files_of(name, ports)
    scripts = [
        text for file, text in files.items() if file.endswith(".tcl") and file != TIMING_CHECK
    ]
    assert bool(scripts) == (flow_of(name) != "litex")
    for text in scripts:
        check_sources(calls_of(text), files)


@devices("vitis")
def test_kernels(name, ports):
    target, files = target_of(name, ports), files_of(name, ports)
    check_kernel(calls_of(files["package_fpgapipe_core.tcl"]), files, target.core)
    for link in target.links:
        calls = calls_of(files[f"package_fpgapipe_aurora_{link.number}.tcl"])
        check_aurora_kernel(calls, files, link)
        check_ips(calls, [link])
    check_link_config(files["link.cfg"], files, target)


def test_kernels_of_a_board_of_several_nodes():
    """Equal cores are one kernel; each node has its die, its memory and streams to neighbours."""
    target = shared_board()
    files = files_of_target(target)
    scripts = sorted(name for name in files if name.startswith("package_"))
    own = {"fpgapipe_core": 0, "fpgapipe_core_of_1": 1, "fpgapipe_core_of_3": 3}
    auroras = ["package_fpgapipe_aurora_0.tcl", "package_fpgapipe_aurora_1.tcl"]
    assert scripts == [*auroras, *(f"package_{kernel}.tcl" for kernel in own)]
    for kernel, number in own.items():
        calls = calls_of(files[f"package_{kernel}.tcl"])
        check_kernel(calls, files, target.nodes[number].core, kernel)
        check_sources(calls, files)
    assert "nk=fpgapipe_core_of_1:2:fpgapipe_core_1.fpgapipe_core_2" in files["link.cfg"]
    joined = check_link_config(files["link.cfg"], files, target)
    core = "fpgapipe_core_{}".format
    between = [
        pair
        for number in range(3)
        for pair in (
            ((core(number), "link1_tx"), (core(number + 1), "link0_rx")),
            ((core(number + 1), "link0_tx"), (core(number), "link1_rx")),
        )
    ]
    own_streams = [pair for pair in joined if "aurora" not in str(pair)]
    assert sorted(own_streams) == sorted(between)
    assert {target.folder} == {node.folder for node in target.nodes[:1]} == {"4-u280-1"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("HBM[8:11]", "HBM[0:3]"),
        ("fpgapipe_core_1.m_axi1:HBM[12:15]", "fpgapipe_core_1.m_axi1:HBM[8:11]"),
        ("sp=fpgapipe_core_1.m_axi1:HBM[12:15]\n", ""),
        ("slr=fpgapipe_core_3:SLR2", "slr=fpgapipe_core_3:SLR1"),
        ("slr=fpgapipe_aurora_0:SLR2", "slr=fpgapipe_aurora_0:SLR1"),
        ("slr=fpgapipe_aurora_1:SLR2\n", ""),
        ("fpgapipe_core_2.link1_tx:fpgapipe_core_3.link0_rx", "fpgapipe_core_2.link1_tx:"
         "fpgapipe_core_1.link1_rx"),
        (":2:fpgapipe_core_1.fpgapipe_core_2", ":2:fpgapipe_core_1"),
    ],
)  # fmt: skip
def test_checks_see_faults_of_nodes(old, new):
    files = files_of_target(shared_board())
    assert old in files["link.cfg"]
    with pytest.raises((AssertionError, KeyError)):
        check_link_config(files["link.cfg"].replace(old, new), files, shared_board())


def design_of(name, ports, files=None):
    files = files or files_of(name, ports)
    return Design(calls_of(files["build.tcl"]), files, target_of(name, ports).board)


@pytest.mark.parametrize(
    ("name", "ports"),
    [each for each in DEVICES if flow_of(each[0]) in ("vivado", "pynq")],
    ids=lambda value: value if isinstance(value, str) else str(len(value)),
)
def test_block_designs(name, ports):
    target, files = target_of(name, ports), files_of(name, ports)
    design = design_of(name, ports)
    check_ips(design.calls, target.links)
    if ports:
        check_board_constraints(files["board.xdc"], design, target)
    else:
        assert "board.xdc" not in files
    project = design.calls.named("create_project")[0]
    assert project.options["-part"] == target.board.part.name


def test_addresses_of_a_zynq_ultrascale():
    design = design_of("zcu102", ())
    base = 0xA0000000
    assert design.address_of("zynq_ps/Data", "fpgapipe_core/S_AXI_CONTROL/reg0") == (
        base,
        base + (1 << ADDRESS_BITS),
    )
    low = design.address_of("fpgapipe_core/m_axi", "zynq_ps/SAXIGP2/HP0_DDR_LOW")
    high = design.address_of("fpgapipe_core/m_axi", "zynq_ps/SAXIGP2/HP0_DDR_HIGH")
    assert low == (0, 2 << 30)
    assert high == (0x8_0000_0000, 0x8_0000_0000 + (2 << 30))
    assert low[1] + high[1] - high[0] == load_board("zcu102").memory[0].size_bytes


def test_addresses_of_a_zynq_7000():
    design = design_of("pynq-z2", ())
    assert design.address_of("zynq_ps/Data", "fpgapipe_core/S_AXI_CONTROL/reg0")[0] == 0x40000000
    assert design.address_of("fpgapipe_core/m_axi", "zynq_ps/S_AXI_HP0/HP0_DDR_LOWOCM") == (
        0,
        512 << 20,
    )


def test_dma_and_core_see_the_same_memory():
    design = design_of("vcu118", ())
    segment = "ddr4/C0_DDR4_MEMORY_MAP/C0_DDR4_ADDRESS_BLOCK"
    places = [design.address_of(each, segment) for each in ("xdma/M_AXI", "fpgapipe_core/m_axi")]
    assert places == [(0, 2 << 30)] * 2


@BY_BOARD
def test_constraints_between_clocks(name, ports):
    target, files = target_of(name, ports), files_of(name, ports)
    for link in target.links:
        text = files[f"fpgapipe_aurora_{link.number}.xdc"]
        check_clock_constraints(text, link, target)
    for file, text in files.items():
        if file.endswith(".xdc"):
            constraints_of(text)


AURORA = """
module {name} (
    input  wire [{lane}:0] rxp, rxn, output wire [{lane}:0] txp, txn,
    input  wire gt_refclk1_p, gt_refclk1_n, init_clk, reset_pb, pma_init, power_down,
    input  wire [2:0] loopback, input wire gt_rxcdrovrden_in,
    output wire user_clk_out, channel_up,
    input  wire [{data}:0] s_axi_tx_tdata, input wire [{keep}:0] s_axi_tx_tkeep,
    input  wire s_axi_tx_tlast, s_axi_tx_tvalid, output wire s_axi_tx_tready,
    output wire [{data}:0] m_axi_rx_tdata, output wire m_axi_rx_tlast, m_axi_rx_tvalid
);
    wire unused = &{{1'b0, rxp, rxn, gt_refclk1_p, gt_refclk1_n, init_clk, reset_pb, pma_init,
        power_down, loopback, gt_rxcdrovrden_in, s_axi_tx_tdata, s_axi_tx_tkeep, s_axi_tx_tlast,
        s_axi_tx_tvalid}};
    assign {{txp, txn, user_clk_out, channel_up, s_axi_tx_tready}} = 0;
    assign {{m_axi_rx_tdata, m_axi_rx_tlast, m_axi_rx_tvalid}} = 0;
endmodule
"""


def lint(folder, top, own):
    """Warnings of Verilator about the files of a package."""
    root = verilator_root()
    names = sorted(each.name for each in folder.glob("*.v"))
    options = [
        "--lint-only",
        "-Wall",
        "-Wno-DECLFILENAME",
        "-Wno-SYMRSVDWORD",
        "-Wno-fatal",
        "--top-module",
        top,
    ]
    done = subprocess.run(
        [root / "bin" / "verilator_bin", *options, *names],
        cwd=folder,
        env={"VERILATOR_ROOT": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("%")]
    return [line for line in lines if any(f" {name}:" in line for name in own)]


@pytest.mark.sim
@pytest.mark.parametrize(
    ("name", "ports"),
    [("u280", ("qsfp/1", "qsfp/0")), ("zcu102", ("sfp/2",)), ("two memory ports", ())],
    ids=str,
)
def test_verilator_accepts_the_modules(name, ports, tmp_path):
    target = target_of(name, ports) if ports else shared_board()
    files = files_of_target(target)
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "core.v").write_text(verilog(target.core))
    (tmp_path / "core" / "fpgapipe_core.v").write_text(files["fpgapipe_core.v"])
    assert lint(tmp_path / "core", "fpgapipe_core", ["fpgapipe_core.v"]) == []
    for link in target.links:
        folder = tmp_path / str(link.number)
        folder.mkdir()
        module = f"fpgapipe_aurora_{link.number}.v"
        bridge = f"aurora_bridge_{link.bridge.lanes}x{link.bridge.phy_bytes}.v"
        (folder / module).write_text(files[module])
        (folder / bridge).write_text(files[bridge])
        (folder / "aurora.v").write_text(
            AURORA.format(
                name=f"aurora_64b66b_{link.number}",
                lane=link.bridge.lanes - 1,
                data=8 * link.bridge.lane_bytes - 1,
                keep=link.bridge.lane_bytes - 1,
            )
        )
        assert lint(folder, module.removesuffix(".v"), [module]) == []


@pytest.mark.sim
def test_the_lint_sees_a_wrong_width(tmp_path):
    files = files_of("zcu102", ("sfp/2",))
    (tmp_path / "core.v").write_text(verilog(target_of("zcu102", ("sfp/2",)).core))
    wrong = files["fpgapipe_core.v"].replace("wire [63:0] m_axi_araddr", "wire [31:0] m_axi_araddr")
    (tmp_path / "fpgapipe_core.v").write_text(wrong)
    assert "WIDTH" in lint(tmp_path, "fpgapipe_core", ["fpgapipe_core.v"])[0]


STUBS = """
proc get_runs {name} { return $name }
proc get_property {name run} {
    global slacks
    return [dict get $slacks $name]
}
"""


@pytest.mark.skipif("tclsh" not in interpreters(), reason="Tcl is not installed")
@pytest.mark.parametrize(
    ("slacks", "ignored", "says"),
    [
        (("0.012", "0.0", "1.1"), False, ""),
        (("-0.001", "0.1", "1.1"), False, "timing is not met: WNS is '-0.001' ns, see timing.rpt"),
        (("0.1", "-0.1", "1.1"), False, "timing is not met: WHS is '-0.1' ns"),
        (("0.1", "0.1", "-2"), False, "timing is not met: TPWS is '-2' ns"),
        (("", "0.1", "1.1"), False, "timing is not met: WNS is '' ns"),
        (("-0.001", "0.1", "1.1"), True, ""),
    ],
)
def test_a_bitstream_that_misses_its_timing_is_refused(slacks, ignored, says):
    """The script that Vivado runs, before results of its implementation."""
    names = ("STATS.WNS", "STATS.WHS", "STATS.TPWS")
    given = " ".join(f"{name} {{{slack}}}" for name, slack in zip(names, slacks, strict=True))
    done = subprocess.run(
        ["tclsh"],
        input=f"set slacks {{{given}}}\n{STUBS}\n{TIMING_CHECK_TEXT}\nputs built\n",
        env=os.environ | ({"IGNORE_TIMING": "1"} if ignored else {}),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert says in done.stderr
    assert bool(done.stderr) == bool(says)
    for name, ports in (("vcu118", ("qsfp/0", "qsfp/1")), ("pynq-z2", ())):
        files = files_of(name, ports)
        assert files[TIMING_CHECK] == TIMING_CHECK_TEXT
        script = files["build.tcl"]
        assert script.index("wait_on_run") < script.index("source check_timing.tcl")
        assert script.index("source check_timing.tcl") < script.index("file copy")


@pytest.mark.parametrize(
    ("name", "ports", "files"),
    [
        ("u55c", ("qsfp/0", "qsfp/1"), ("link.cfg", "package_fpgapipe_aurora_1.tcl", "Makefile")),
        ("vcu118", ("qsfp/0", "qsfp/1"), ("build.tcl", "board.xdc", "README.md")),
        ("pynq-z2", (), ("build.tcl", "README.md")),
        ("ulx3s", ("gpio/0", "gpio/1"), ("device.json", "Makefile", "README.md")),
    ],
    ids=["u55c", "vcu118", "pynq-z2", "ulx3s"],
)
def test_golden_files(name, ports, files):
    """If a change is meant, the file here is replaced by what the message shows."""
    for file in files:
        expected = (GOLDEN / name / file).read_text()
        assert normal(files_of(name, ports)[file]) == expected, f"tests/data/package/{name}/{file}"


def normal(text):
    """A text without the digest of the core, which its parameters alter, and the version."""
    text = text.replace(f"fpgapipe {__version__}", "fpgapipe VERSION")
    text = re.sub(r'"digest": "[0-9a-f]{8}"', '"digest": "DIGEST"', text)
    return re.sub(r"core_2x2_[0-9a-f]{8}", "core_2x2_DIGEST", text)


def test_makefiles_name_all_files():
    """Each prerequisite of a rule is a file of the package, the core, or a target."""
    for name, ports in DEVICES:
        files = files_of(name, ports)
        rules = re.findall(r"^([\w./]+):(.*)$", files["Makefile"], re.MULTILINE)
        targets = {target for target, _ in rules}
        for _, needed in rules:
            for each in needed.split():
                assert each in targets or each in files or each.startswith("../../../hardware/")


TOOLS = {
    "vivado": "touch fpgapipe_core.xo fpgapipe_aurora_0.xo fpgapipe_aurora_1.xo",
    "v++": 'echo "$@" >> calls; grep -c ^connect= used.cfg >> calls; touch fpgapipe.xclbin',
    "xclbinutil": """for to; do :; done; cat > "${to##*:}" <<'END'
{"clock_freq_topology": {"m_count": "3", "m_clock_freq": [
    {
        "m_freq_Mhz": "271",
        "m_type": "DATA",
        "m_name": "ulp_ucs_aclk_kernel_00"
    },
    {
        "m_freq_Mhz": "500",
        "m_type": "KERNEL",
        "m_name": "ulp_ucs_aclk_kernel_01"
    }]}}
END""",
    "g++": "touch libfpgapipe_xrt.so",
}
"""Scripts in place of the tools of vendors: each leaves the files that its tool does."""


@pytest.mark.parametrize("way", ["connect", "hook"])
def test_a_vitis_package_is_made(way, tmp_path, monkeypatch):
    """The linker joins transceivers, or a script does; the clock that was made is read back."""
    tools, place = tmp_path / "tools", tmp_path / "package" / "vitis" / "1-u55c-1"
    tools.mkdir()
    place.mkdir(parents=True)
    for name, text in TOOLS.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    target = target_of("u55c", ("qsfp/0", "qsfp/1"))
    for name, text in files_of("u55c", ("qsfp/0", "qsfp/1")).items():
        (place / name).write_text(text)
    core = place / "../../.." / target.core_file
    core.parent.mkdir()
    core.touch()
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    arguments = ["make", "-C", place, "CXX=g++", f"TRANSCEIVERS={way}"]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    options, connects = (place / "calls").read_text().splitlines()
    hook = f"compiler.userPostSysLinkOverlayTcl={place}/join_transceivers.tcl"
    assert (hook in options) == (way == "hook")
    assert connects == ("0" if way == "hook" else "6")
    assert re.search('Planned for 300 MHz.*\n.*"271"', done.stdout)

    spec = SimpleNamespace(clk_hz=300e6)
    plan = SimpleNamespace(nodes=[SimpleNamespace(device=each, spec=spec) for each in "ab"])
    assert core_clocks(tmp_path / "package", plan) == [300e6, 271e6]
    assert other_clocks(tmp_path / "package", plan) == {"b": 271e6}
    made = place / "achieved_clocks.json"
    made.write_text(made.read_text().replace('"DATA"', '"SYSTEM"'))
    with pytest.raises(UserError, match=r"achieved_clocks.json does not have one clock of type"):
        core_clocks(tmp_path / "package", plan)


def test_the_script_joins_what_the_linker_joins():
    files = files_of("u55c", ("qsfp/0", "qsfp/1"))
    joined = re.findall(r"^connect_bd\w+ \[\w+ (\S+)\] \[\w+ (\S+)\]$", files[JOIN], re.MULTILINE)
    wanted = re.findall(r"^connect=(.*):(.*)$", files["link.cfg"], re.MULTILINE)
    assert sorted(map(sorted, joined)) == sorted(map(sorted, wanted))


def test_one_command_builds_all_devices(tmp_path):
    """The Makefile above the devices calls theirs, with the variables that it was given."""
    (tmp_path / "Makefile").write_text(makefile(["0-a", "1-b"]))
    for name in ("0-a", "1-b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "Makefile").write_text(
            "all:\n\techo $(PYTHON) > made\nclean:\n\trm made\n"
        )
    make = ["make", "-C", tmp_path]
    subprocess.run([*make, "-j2", "PYTHON=mine"], check=True)
    assert [path.read_text() for path in sorted(tmp_path.glob("*/made"))] == ["mine\n"] * 2
    subprocess.run([*make, "clean"], check=True)
    assert not list(tmp_path.glob("*/made"))
    (tmp_path / "1-b" / "Makefile").write_text("all:\n\tfalse\n")
    assert subprocess.run(make, check=False).returncode == 2


class TestFaults:
    """Deliberate faults, each of which a check has to see."""

    def build(self, old, new, name="vcu118", ports=("qsfp/0", "qsfp/1")):
        files = dict(files_of(name, ports))
        assert old in files["build.tcl"], old
        files["build.tcl"] = files["build.tcl"].replace(old, new, 1)
        design = design_of(name, ports, files)
        check_ips(design.calls, target_of(name, ports).links)
        check_sources(design.calls, files)

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("-part xcvu9p", "-device xcvu9p", "no option -device"),
            ("[get_bd_pins xdma/sys_clk_gt]", "[get_bd_pins xdma/sysclk]", "has no pin sysclk"),
            ("CONFIG.NUM_CLKS {3}", "CONFIG.NUM_CLKS {2}", "memory has no pin aclk2"),
            ("CONFIG.axilite_master_en", "CONFIG.axilite_en", "no setting axilite_en"),
            (
                "connect_bd_net [get_bd_pins fpgapipe_irq_sync/o] [get_bd_pins xdma/usr_irq_req]\n",
                "",
                "xdma lacks usr_irq_req",
            ),
            (
                "connect_bd_intf_net [get_bd_intf_pins xdma/M_AXI] [get_bd_intf_pins "
                "memory/S00_AXI]\n",
                "",
                "is joined to nothing",
            ),
            (
                "[get_bd_pins fpgapipe_core/ap_clk] [get_bd_pins control/aclk1] ",
                "[get_bd_pins control/aclk1] ",
                "fpgapipe_core lacks ap_clk",
            ),
            (
                "[get_bd_pins core_clock/clk_out1] [get_bd_pins fpgapipe_aurora_0/ap_clk]",
                "[get_bd_pins xdma/axi_aclk] [get_bd_pins fpgapipe_aurora_0/ap_clk]",
                "has another clock",
            ),
            ("-range 0x80000000", "-range 0x60000000", "no power of two"),
            ("-offset 0x0 -range 0x1000", "-offset 0x800 -range 0x1000", "is not aligned"),
            ("validate_bd_design\nsave_bd_design", "save_bd_design", "comes before"),
            ("CONFIG.C_START_LANE {X1Y48}", "CONFIG.C_START_LANE {X1Y52}", "is not the first lane"),
            ("aurora_bridge_4x64.v", "aurora_bridge_4x32.v", "is no file of the package"),
            (
                "M_AXI_LITE] [get_bd_intf_pins control/S00",
                "M_AXI] [get_bd_intf_pins control/S00",
                "is joined twice",
            ),
        ],
    )
    def test_in_a_block_design(self, old, new, message):
        with pytest.raises(AssertionError, match=message):
            self.build(old, new)

    @pytest.mark.parametrize("way", WAYS)
    def test_an_unknown_command(self, way):
        text = files_of("pynq-z2", ())["build.tcl"].replace("validate_bd_design", "check_bd_design")
        with pytest.raises(TclError, match="invalid command name"):
            calls_of(text, way)

    @pytest.mark.parametrize("way", WAYS)
    def test_a_missing_brace(self, way):
        text = files_of("pynq-z2", ())["build.tcl"].replace("{1}", "{1", 1)
        with pytest.raises(TclError):
            calls_of(text, way)

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("set_property address_offset 0x060", "set_property address_offset 0x064"),
            ("ipx::add_register STATUS ", "ipx::add_register STATE "),
            ("-busif link1_rx -clock ap_clk", "-busif link1_rx -clock clk"),
            ("set_property value m_axi", "set_property value s_axi"),
            ("-ctrl_protocol user_managed", "-ctrl_protocol ap_ctrl_hs"),
            ("set_property size 64", "set_property size 32"),
        ],
    )
    def test_in_a_kernel(self, old, new):
        name, ports = "u280", ("qsfp/1", "qsfp/0")
        files = files_of(name, ports)
        assert old in files["package_fpgapipe_core.tcl"], old
        calls = calls_of(files["package_fpgapipe_core.tcl"].replace(old, new, 1))
        with pytest.raises((AssertionError, KeyError)):
            check_kernel(calls, files, target_of(name, ports).core)

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("io_gt_qsfp0_00", "io_gt_qsfp1_00"),
            ("refclkb_00", "refclka_00"),
            ("HBM[0:31]", "HBM[0:15]"),
            ("fpgapipe_core_0.link1_tx", "fpgapipe_core_0.link2_tx"),
            ("fpgapipe_core_0.link1_tx", "fpgapipe_core_0.link0_tx"),
            ("slr=fpgapipe_core_0:SLR0", "slr=fpgapipe_core_0:SLR3"),
            ("kernel_frequency=300", "kernel_frequency=250"),
        ],
    )
    def test_in_the_linkers_settings(self, old, new):
        name, ports = "u280", ("qsfp/1", "qsfp/0")
        files = files_of(name, ports)
        assert old in files["link.cfg"], old
        with pytest.raises((AssertionError, KeyError)):
            check_link_config(files["link.cfg"].replace(old, new, 1), files, target_of(name, ports))

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("PACKAGE_PIN Y2 ", "PACKAGE_PIN Y4 "),
            ("-period 6.400", "-period 6.206"),
            ("IOSTANDARD LVCMOS18", "IOSTANDARD LVCMOS33"),
            ("set_property PACKAGE_PIN W9 [get_ports qsfp0_refclk_clk_p]\n", ""),
            ("{qsfp1_grx_p[0]}", "{qsfp1_grx_p[1]}"),
        ],
    )
    def test_in_constraints(self, old, new):
        name, ports = "vcu118", ("qsfp/0", "qsfp/1")
        text = files_of(name, ports)["board.xdc"]
        assert old in text, old
        with pytest.raises(AssertionError):
            check_board_constraints(
                text.replace(old, new, 1), design_of(name, ports), target_of(name, ports)
            )

    def test_a_bracket_in_constraints(self):
        """Tcl takes brackets for a command if the word is not in braces."""
        text = files_of("vcu118", ("qsfp/0", "qsfp/1"))["board.xdc"]
        for way in WAYS:
            with pytest.raises(TclError):
                constraints_of(text.replace("{qsfp0_grx_p[0]}", "qsfp0_grx_p[0]"), way)
