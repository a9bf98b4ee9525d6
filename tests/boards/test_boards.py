"""The boards of the package, those from elsewhere, and what the planner gets of them."""

import dataclasses
import json
from pathlib import Path

import plugin_cases
import pytest
import yaml

from fpgapipe.boards.library import board_names, load_board
from fpgapipe.boards.schema import ESTIMATE, RESOURCES, Board
from fpgapipe.errors import FileError, UserError
from fpgapipe.host.cli.main import main
from fpgapipe.hw.hls_models.spec.device import (
    DeviceSpec,
    DieResources,
    LinkPortSpec,
    MemoryGroupSpec,
)

FOLDER = Path(__file__).parents[2] / "boards"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
PROMISED = {"u280", "u250", "u200", "u55c", "vcu118", "vcu129", "zcu102", "kv260", "ulx3s"}


def test_the_promised_boards_are_there():
    assert set(NAMES) == set(board_names())
    assert set(NAMES) > PROMISED


@pytest.mark.parametrize("name", NAMES)
class TestEveryBoard:
    def test_its_name_is_the_files(self, name):
        assert load_board(name).name == name

    def test_the_path_gives_the_same_board(self, name):
        assert load_board(FOLDER / f"{name}.yaml") == load_board(name)
        assert load_board(str(FOLDER / f"{name}.yaml")) == load_board(name)

    def test_its_dies_fit_the_part_and_are_no_toy(self, name):
        board = load_board(name)
        for resource in RESOURCES:
            total = sum(die.count_of(resource) for die in board.fabric.dies)
            assert total <= board.part.count_of(resource)
            if board.fabric.counted == "raw":
                assert total == board.part.count_of(resource)
            else:
                assert total >= 0.8 * board.part.count_of(resource)

    def test_every_block_names_a_source(self, name):
        board = load_board(name)
        blocks = [board.part, board.fabric, board.usable_share, board.clock, board.host]
        blocks += [*board.shell, *board.memory, *board.links]
        sources = [block.source for block in blocks]
        sources += [block.latency_source for block in [*board.memory, *board.links]]
        sources += [each.sustained_source for each in board.memory if each.sustained_source]
        for source in sources:
            is_estimate = source.startswith(ESTIMATE)
            assert source in board.sources or (is_estimate and len(source) > 20), source

    def test_what_is_usable_is_less_than_the_part_and_enough_to_use(self, name):
        board = load_board(name)
        spec = board.device_spec()
        assert 0 < spec.lut < board.part.lut
        assert 0 < spec.ff < board.part.ff
        assert 0 < spec.bram36 < board.part.half_brams / 2
        assert 0 < spec.dsp < board.part.dsp
        assert spec.uram < board.part.uram or spec.uram == board.part.uram == 0
        assert spec.num_ports >= 1
        assert spec.memory_bytes >= 32 * 2**20
        assert 10e6 <= spec.clk_hz <= 500e6

    def test_memory_and_links_are_plausible(self, name):
        for memory in load_board(name).memory:
            assert 10e-9 <= memory.latency_s <= 1e-6
            assert 50e6 <= memory.bandwidth_bytes_per_s <= 100e9
        for links in load_board(name).links:
            assert 10e-9 <= links.latency_s <= 10e-6
            assert 0.9 <= links.efficiency <= 1

    def test_no_safe_loader_is_needed_for_its_file(self, name):
        """Plain YAML readers agree on the structure, if not on units."""
        value = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
        assert value["part"]["lut"] == load_board(name).part.lut


# Written down a second time, so that a slip of the hand in a board file is noticed.
@pytest.mark.parametrize(
    ("name", "lut", "ff", "bram36", "uram", "dsp"),
    [
        ("u280", 1_303_680, 2_607_360, 2016, 960, 9024),
        ("u250", 1_728_000, 3_456_000, 2688, 1280, 12_288),
        ("u200", 1_182_240, 2_364_480, 2160, 960, 6840),
        ("vcu118", 1_182_240, 2_364_480, 2160, 960, 6840),
        ("vcu129", 1_728_000, 3_456_000, 2688, 1280, 12_288),
        ("zcu102", 274_080, 548_160, 912, 0, 2520),
        ("kv260", 117_120, 234_240, 144, 64, 1248),
        ("ulx3s", 83_640, 83_640, 104, 0, 156),
    ],
)
def test_parts(name, lut, ff, bram36, uram, dsp):
    part = load_board(name).part
    assert (part.lut, part.ff, part.half_brams / 2, part.uram, part.dsp) == (
        lut, ff, bram36, uram, dsp,
    )  # fmt: skip


def test_usable_is_share_of_what_the_shell_leaves():
    """U280, SLR0, by hand: HBM glue and a DDR controller come off, then the share is taken."""
    die = load_board("u280").device_spec().dies[0]
    assert die.name == "SLR0"
    assert die.lut == int((400_800 - 10_718 - 33_256) * 0.7)
    assert die.ff == int((801_600 - 21_793 - 44_889) * 0.5)
    assert die.bram36 == int((1200 - 8 - 199) * 0.8) // 2
    assert die.uram == 256
    assert die.dsp == int((2736 - 3) * 0.8)


def test_totals_of_a_device():
    spec = load_board("u280").device_spec()
    assert spec.name == "u280"
    assert spec.dsp_kind == "DSP48E2"
    assert spec.memory_bytes == 8 * 2**30
    assert spec.memory_bytes_per_s == pytest.approx(13.28e9)  # of 14.375, as it was measured
    assert spec.lut == sum(die.lut for die in spec.dies)
    assert spec.on_chip_bytes == spec.bram36 * 4608 + spec.uram * 36_864
    assert spec.num_ports == 2
    assert spec.ports[0].payload_bytes_per_s == pytest.approx(12.5e9)
    assert spec.clk_hz == 300e6


@pytest.mark.parametrize(
    ("name", "memory", "size_bytes", "bytes_per_s"),
    [
        ("u55c", "hbm", 16 << 30, 13.28e9),
        ("vcu118", "ddr4", 2 << 30, 19.2e9),  # one of two
        ("kv260", "ps-ddr4", 4 << 30, 16 * 250e6),
        ("zcu102", "ps-ddr4", 4 << 30, 16 * 250e6),  # and not what the fabric has of its own
        ("pynq-z2", "ps-ddr3", 512 << 20, 8 * 100e6),
        ("ulx3s", "sdram", 32 << 20, 53.3e6),
    ],
)
def test_a_package_reaches_one_port(name, memory, size_bytes, bytes_per_s):
    board = load_board(name)
    (found,) = board.device_spec().memories
    assert (found.name, found.count, found.size_bytes) == (memory, 1, size_bytes)
    assert found.bandwidth_bytes_per_s == pytest.approx(bytes_per_s)
    assert found.latency_s == next(each for each in board.memory if each.name == memory).latency_s


def test_slow_memory_behind_a_fast_port():
    board = load_board("kv260")
    slow = board.memory[0].model_copy(update={"bandwidth_bytes_per_s": 1e9})
    spec = board.model_copy(update={"memory": [slow]}).device_spec()
    assert spec.memory_bytes_per_s == 1e9


def test_a_core_without_a_package_has_all_memory():
    spec = load_board("u250").device_spec()
    assert [each.count for each in spec.memories] == [4]
    assert spec.memory_bytes_per_s == pytest.approx(4 * 19.2e9)


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("4096", 4096), ("4 KiB", 4096), ("4kB", 4000), ("1.5 GiB", 3 * 2**29), ("1e3 MB", 10**9),
     ("1_000 B", 1000), ("2e9", 2_000_000_000)],
)  # fmt: skip
def test_units(text, bytes_, tmp_path):
    source = (FOLDER / "ulx3s.yaml").read_text()
    path = tmp_path / "mine.yaml"
    path.write_text(source.replace("size_bytes: 32 MiB", f"size_bytes: {text}"))
    assert load_board(path).memory[0].size_bytes == bytes_


def test_latency_has_no_rounding_noise(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text((FOLDER / "ulx3s.yaml").read_text().replace("0.25 us", "100 ns"))
    assert load_board(path).memory[0].latency_s == 1e-7


def test_a_board_does_not_change():
    with pytest.raises(ValueError, match="frozen"):
        load_board("u280").name = "other"


def test_board_json_goes_both_ways():
    board = load_board("u280")
    assert Board.model_validate_json(board.model_dump_json()) == board


class TestFinding:
    def test_unknown_name_gets_the_nearest(self):
        with pytest.raises(UserError) as raised:
            load_board("vcu-118")
        assert str(raised.value) == "there is no board named 'vcu-118'; did you mean 'vcu118'?"

    def test_unknown_name_gets_the_list(self):
        with pytest.raises(UserError) as raised:
            load_board("stratix")
        assert str(raised.value) == (
            f"there is no board named 'stratix'; the boards are {', '.join(board_names())}"
        )

    @pytest.mark.parametrize("name", ["", " ", "U280", "u280 ", "..", "u280\n"])
    def test_odd_names(self, name):
        with pytest.raises(UserError, match="there is no board named"):
            load_board(name)

    def test_a_missing_file_with_a_built_in_name(self, tmp_path):
        path = tmp_path / "boards" / "u280.yaml"
        with pytest.raises(FileError) as raised:
            load_board(str(path))
        assert str(raised.value) == (
            f"{path}: there is no such file; the built-in board is named 'u280'"
        )

    def test_a_cluster_file_is_no_board(self):
        path = FOLDER.parent / "examples" / "clusters" / "u280-chain.yaml"
        with pytest.raises(FileError) as raised:
            load_board(path)
        assert str(raised.value) == (
            f"{path}: is a cluster file, since it has the key 'devices'; a board file is needed"
        )

    def test_a_file_of_the_users(self, tmp_path, monkeypatch):
        (tmp_path / "mine.yaml").write_text(
            (FOLDER / "ulx3s.yaml").read_text().replace("name: ulx3s", "name: mine")
        )
        monkeypatch.chdir(tmp_path)
        assert load_board("mine.yaml").name == "mine"
        assert load_board("./mine.yaml").name == "mine"


@pytest.fixture
def offer(site):
    """Install packages that offer boards: ``offer(package, board, file's board or None)``."""

    def install(package: str, board: str, content: str | None, module: str | None = None) -> None:
        files = {}
        if content is not None:
            text = (FOLDER / "ulx3s.yaml").read_text().replace("name: ulx3s", f"name: {content}")
            files[f"{board}.yaml"] = text
        entries = {"fpgapipe.boards": {board: module or package}}
        plugin_cases.install(site, package, files, entries)

    return install


class TestEntryPoints:
    def test_a_package_offers_a_board(self, offer):
        offer("fpgapipe_test_a", "lab-board", "lab-board")
        assert load_board("lab-board").name == "lab-board"
        assert board_names()[-1] == "lab-board"

    def test_a_built_in_board_is_not_replaced(self, offer):
        offer("fpgapipe_test_b", "u280", "u280")
        with pytest.raises(UserError) as raised:
            load_board("u280")
        assert str(raised.value) == (
            "the package fpgapipe_test_b offers 'u280 = fpgapipe_test_b' in fpgapipe.boards, and "
            "fpgapipe has a board of that name; rename the entry point, or uninstall the package "
            "fpgapipe_test_b"
        )
        assert board_names().count("u280") == 1
        assert load_board("u250").name == "u250"

    def test_two_packages_with_one_name(self, offer):
        offer("fpgapipe_test_c", "lab-board", "lab-board")
        offer("fpgapipe_test_d", "lab-board", "lab-board")
        with pytest.raises(UserError, match=r"is offered by the package .* and the package"):
            load_board("lab-board")

    def test_a_package_without_the_file(self, offer):
        offer("fpgapipe_test_e", "lab-board", None)
        with pytest.raises(FileError, match=r"lab-board\.yaml: there is no such file$"):
            load_board("lab-board")

    def test_a_package_that_cannot_be_imported(self, offer):
        offer("fpgapipe_test_f", "lab-board", None, module="fpgapipe_test_none")
        with pytest.raises(UserError) as raised:
            load_board("lab-board")
        assert str(raised.value) == (
            "the package fpgapipe_test_f offers 'lab-board = fpgapipe_test_none' in "
            'fpgapipe.boards, which cannot be imported: ModuleNotFoundError: "No module named '
            "'fpgapipe_test_none'\"; mend the package fpgapipe_test_f, or uninstall it"
        )

    def test_a_file_with_another_name(self, offer, tmp_path):
        offer("fpgapipe_test_g", "lab-board", "other")
        with pytest.raises(UserError) as raised:
            load_board("lab-board")
        assert str(raised.value) == (
            f"{tmp_path}/fpgapipe_test_g/lab-board.yaml: names the board 'other', and its package "
            "'lab-board'"
        )

    def test_what_is_no_package(self, offer):
        offer("fpgapipe_test_i", "lab-board", None, module="pathlib:Path")
        with pytest.raises(UserError, match=r"in fpgapipe\.boards, which is no package; mend the"):
            load_board("lab-board")

    def test_the_list_goes_on_without_a_broken_board(self, offer, capsys):
        offer("fpgapipe_test_h", "lab-board", "other")
        assert main(["boards"]) == 0
        out, err = capsys.readouterr()
        assert "u280" in out
        assert "lab-board" not in out
        assert "lab-board.yaml: names the board 'other'" in err
        assert err.startswith("left out: ")


class TestCommand:
    def test_list(self, capsys):
        assert main(["boards"]) == 0
        lines = capsys.readouterr().out.splitlines()
        headings = "name part dies LUT FF BRAM36 URAM DSP memory links clock"
        assert " ".join(lines[0].split()) == headings
        row = next(line for line in lines if line.startswith("u280 "))
        numbers = "u280 xcu280-fsvh2892-2L-e 3 1,303,680 2,607,360 2,016 960 9,024 8 GiB hbm2"
        assert " ".join(row.split()).startswith(numbers)
        assert row.endswith("8 GiB hbm2 + 32 GiB ddr4   2 x 103 Gb/s                  300 MHz")

    def test_one_in_full_has_its_sources(self, capsys):
        assert main(["boards", "u280"]) == 0
        out = capsys.readouterr().out
        for entry in load_board("u280").sources.values():
            assert entry.title in out
        assert "SLR0, usable" in out
        assert "estimate: " in out

    @pytest.mark.parametrize("name", NAMES)
    def test_every_board_can_be_shown(self, name, capsys):
        assert main(["boards", name]) == 0
        assert load_board(name).title in capsys.readouterr().out

    def test_json(self, capsys):
        assert main(["boards", "u280", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["part"]["dsp"] == 9024
        assert main(["boards", "--json"]) == 0
        listed = json.loads(capsys.readouterr().out)["boards"]
        assert [board["name"] for board in listed][: len(NAMES)] == NAMES

    def test_error(self, capsys):
        assert main(["boards", "u281"]) == 2
        assert capsys.readouterr().err == (
            "error: there is no board named 'u281'; did you mean 'u280'?\n"
        )


class TestDeviceSpec:
    DIE = DieResources(name="d", lut=10, ff=20, bram36=3, uram=0, dsp=4)
    MEMORY = MemoryGroupSpec(
        name="m", kind="ddr4", count=1, size_bytes=8, bandwidth_bytes_per_s=1e9, latency_s=0.0
    )
    PORT = LinkPortSpec(
        name="p",
        count=2,
        protocol="gpio",
        line_rate_bits_per_s=8e9,
        payload_efficiency=0.5,
        latency_s=1e-6,
    )
    DEVICE = DeviceSpec(
        name="dev",
        part="part",
        dsp_kind="DSP48E2",
        clk_hz=1e8,
        dies=(DIE,),
        memories=(MEMORY,),
        ports=(PORT,),
        host_bytes_per_s=1e9,
    )

    def test_payload(self):
        assert self.PORT.payload_bytes_per_s == 0.5e9

    @pytest.mark.parametrize(
        ("spec", "change", "message"),
        [
            ("DIE", {"lut": -1}, "die d lut must be a whole number of at least 0, not -1"),
            ("DIE", {"dsp": 1.5}, "die d dsp must be a whole number of at least 0, not 1.5"),
            ("DIE", {"ff": True}, "die d ff must be a whole number of at least 0, not True"),
            ("MEMORY", {"count": 0}, "memory m count must be a whole number of at least 1, not 0"),
            (
                "MEMORY",
                {"size_bytes": 0},
                "memory m size in bytes must be a whole number of at least 1, not 0",
            ),
            (
                "MEMORY",
                {"bandwidth_bytes_per_s": float("inf")},
                "memory m bandwidth must be finite and above 0 bytes/s, not inf",
            ),
            (
                "MEMORY",
                {"latency_s": -1.0},
                "memory m latency must be finite and at least 0 s, not -1.0",
            ),
            (
                "PORT",
                {"line_rate_bits_per_s": 0.0},
                "link port p line rate must be finite and above 0 bits/s, not 0.0",
            ),
            (
                "PORT",
                {"payload_efficiency": 1.1},
                "link port p payload efficiency must be above 0, at most 1, not 1.1",
            ),
            (
                "DEVICE",
                {"clk_hz": float("nan")},
                "device dev clock must be finite and above 0 Hz, not nan",
            ),
            ("DEVICE", {"dies": ()}, "device dev must have at least one die"),
            (
                "DEVICE",
                {"dies": (DIE, DIE)},
                "device dev has two of one die name: ['d', 'd']",
            ),
        ],
    )
    def test_refusals(self, spec, change, message):
        with pytest.raises(ValueError, match=r"must|has") as raised:
            dataclasses.replace(getattr(self, spec), **change)
        assert str(raised.value) == message
