"""Clusters: files, chains of one board, how links get their ports, and what the planner gets."""

import dataclasses
import json
from pathlib import Path

import click
import pytest

from fpgapipe.boards.cluster import MAX_DEVICES, chain_of, load_cluster
from fpgapipe.boards.library import load_board
from fpgapipe.errors import FileError, UserError
from fpgapipe.host.cli.main import main
from fpgapipe.host.cli.options.cluster_options import cluster_options
from fpgapipe.hw.hls_models.spec.device import ClusterSpec, LinkSpec

EXAMPLES = Path(__file__).parents[2] / "examples" / "clusters"


@pytest.fixture
def cluster_of(tmp_path):
    """Read a cluster of which the text gives all but format and name."""

    def read(text: str):
        path = tmp_path / "c.yaml"
        path.write_text(f"format: 1\nname: c\n{text}")
        return load_cluster(path)

    return read


def wires(cluster):
    """Write links as ``a/qsfp/0 -> b/qsfp/1``."""
    names = cluster.device_names
    return [
        f"{names[link.source]}/{link.source_port} -> "
        f"{names[link.destination]}/{link.destination_port}"
        for link in cluster.links
    ]


class TestChainOf:
    def test_joins_neighbours(self):
        cluster = chain_of(load_board("u280"), 4)
        assert cluster.name == "u280-x4"
        assert wires(cluster) == [
            "u280-0/qsfp/0 -> u280-1/qsfp/0",
            "u280-1/qsfp/1 -> u280-2/qsfp/0",
            "u280-2/qsfp/1 -> u280-3/qsfp/0",
        ]
        assert cluster.notes == ()

    def test_one_device_has_no_links(self):
        assert chain_of(load_board("u280"), 1).links == ()

    @pytest.mark.parametrize("num_devices", [0, -1, MAX_DEVICES + 1, 10**9, 10**40])
    def test_refuses_numbers_out_of_range(self, num_devices):
        with pytest.raises(UserError) as raised:
            chain_of(load_board("u280"), num_devices)
        assert str(raised.value) == f"a cluster must have 1..4096 devices, not {num_devices}"

    def test_the_largest(self):
        spec = chain_of(load_board("u280"), MAX_DEVICES).spec
        assert len(spec.links) == MAX_DEVICES - 1
        assert len({id(device) for device in spec.devices}) == 1

    def test_a_board_with_one_port_can_only_be_an_end(self):
        assert len(chain_of(load_board("u50"), 2).links) == 1
        with pytest.raises(UserError) as raised:
            chain_of(load_board("u50"), 3)
        assert str(raised.value) == (
            "a chain of 3 u50 cannot be wired: u50-1 -> u50-2 must find a free link port, "
            "but all of u50-1 are in use (1 qsfp)"
        )

    def test_a_chain_may_change_protocol_from_link_to_link(self):
        cluster = chain_of(load_board("kv260"), 4)
        assert [link.protocol for link in cluster.links] == [
            "aurora-64b66b",
            "gpio",
            "aurora-64b66b",
        ]


class TestExamples:
    def test_all_can_be_read(self):
        names = {path.stem: load_cluster(path).name for path in EXAMPLES.glob("*.yaml")}
        assert len(names) == 3
        assert all(stem == name for stem, name in names.items())

    def test_chain_of_u280(self):
        by_file = load_cluster(EXAMPLES / "u280-chain.yaml")
        short = chain_of(load_board("u280"), 4)
        assert by_file.device_names == short.device_names
        assert by_file.links == short.links
        assert by_file.spec.devices == short.spec.devices

    def test_mixed_chain(self):
        cluster = load_cluster(EXAMPLES / "vcu118-vcu129-chain.yaml")
        assert [device.name for device in cluster.spec.devices] == [
            "vcu118", "vcu118", "vcu129", "vcu129",
        ]  # fmt: skip
        rates = [link.line_rate_bits_per_s for link in cluster.links]
        assert rates == [103.125e9, 103.125e9, 212.5e9]

    def test_ring_by_links(self):
        cluster = load_cluster(EXAMPLES / "u55c-ring.yaml")
        assert wires(cluster) == [
            "first/qsfp/0 -> middle/qsfp/1",
            "middle/qsfp/0 -> last/qsfp/0",
            "last/qsfp/1 -> first/qsfp/1",
        ]
        assert [link.latency_s for link in cluster.links] == [0.5e-6, 0.5e-6, 0.7e-6]


class TestTopology:
    def test_ring_of_two_has_two_links(self, cluster_of):
        cluster = cluster_of("topology: ring\ndevices: [{name: d, board: u280, count: 2}]\n")
        assert wires(cluster) == ["d0/qsfp/0 -> d1/qsfp/0", "d1/qsfp/1 -> d0/qsfp/1"]
        assert len(cluster.spec.links_between(0, 1)) == 2

    def test_ring_needs_two_ports_each(self, cluster_of):
        with pytest.raises(FileError, match="all of d1 are in use"):
            cluster_of("topology: ring\ndevices: [{name: d, board: u50, count: 2}]\n")

    def test_ring_of_one(self, cluster_of):
        with pytest.raises(FileError, match=r"a ring must have at least 2 devices, not 1$"):
            cluster_of("topology: ring\ndevices: [{name: d, board: u280}]\n")

    def test_named_ports_are_kept_free_for_their_links(self, cluster_of):
        cluster = cluster_of(
            "devices: [{name: a, board: u280}, {name: b, board: u280}]\n"
            "topology: links\n"
            "links: [{from: a, to: b}, {from: a/qsfp/0, to: b/qsfp/0}]\n"
        )
        assert wires(cluster) == ["a/qsfp/1 -> b/qsfp/1", "a/qsfp/0 -> b/qsfp/0"]

    def test_the_slower_end_decides_and_a_note_says_so(self, tmp_path, cluster_of):
        slow = (Path(__file__).parents[2] / "boards" / "u280.yaml").read_text()
        slow = slow.replace("103.125 Gb/s", "41.25 Gb/s").replace("0.5 us", "2 us")
        (tmp_path / "slow.yaml").write_text(slow)
        cluster = cluster_of(
            "topology: chain\ndevices: [{name: a, board: u280}, {name: b, board: slow.yaml}]\n"
        )
        (link,) = cluster.links
        assert link.line_rate_bits_per_s == 41.25e9
        assert link.payload_bytes_per_s == pytest.approx(5e9)
        assert link.latency_s == 2e-6
        assert cluster.notes == (
            "a -> b runs at 41.25 Gb/s, the slower of its ports; the other could do 103.125 Gb/s",
        )

    def test_a_link_may_be_slowed_down(self, cluster_of):
        cluster = cluster_of(
            "devices: [{name: a, board: u280}, {name: b, board: u280}]\n"
            "topology: links\n"
            "links: [{from: a, to: b, line_rate_bits_per_s: 40 Gb/s, latency_s: 3 us}]\n"
        )
        assert cluster.links[0].line_rate_bits_per_s == 40e9
        assert cluster.links[0].latency_s == 3e-6

    def test_boards_are_found_from_the_cluster_files_folder(self, tmp_path, monkeypatch):
        (tmp_path / "sub").mkdir()
        board = (Path(__file__).parents[2] / "boards" / "ulx3s.yaml").read_text()
        (tmp_path / "mine.yaml").write_text(board)
        path = tmp_path / "sub" / "c.yaml"
        path.write_text(
            "format: 1\nname: c\ntopology: chain\ndevices: [{name: a, board: ../mine.yaml}]\n"
        )
        monkeypatch.chdir("/")
        assert load_cluster(path).boards[0].name == "ulx3s"


class TestClusterSpec:
    SPEC = chain_of(load_board("u280"), 2).spec

    def test_links_between(self):
        assert self.SPEC.links_between(1, 0) == self.SPEC.links
        assert chain_of(load_board("u280"), 3).spec.links_between(0, 2) == ()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"devices": ()}, "cluster u280-x2 must have at least one device"),
            (
                {"device_names": ("a", "a")},
                "cluster u280-x2 must have one unique name for each device",
            ),
            (
                {"links": SPEC.links * 2},
                "cluster u280-x2 uses port qsfp/0 of device 0 twice",
            ),
            (
                {"links": (dataclasses.replace(SPEC.links[0], destination=2),)},
                "cluster u280-x2 link ends must be devices 0..1, not 2",
            ),
        ],
    )
    def test_refusals(self, change, message):
        with pytest.raises(ValueError, match="cluster") as raised:
            dataclasses.replace(self.SPEC, **change)
        assert str(raised.value) == message

    def test_a_link_joins_two(self):
        with pytest.raises(ValueError, match="must join two devices, not one with itself"):
            dataclasses.replace(self.SPEC.links[0], destination=0)

    def test_is_plain_data(self):
        assert isinstance(self.SPEC, ClusterSpec)
        assert isinstance(self.SPEC.links[0], LinkSpec)
        assert json.dumps(dataclasses.asdict(self.SPEC))


class TestCommand:
    def test_shows_devices_and_links(self, capsys):
        assert main(["cluster", "--board", "u280", "--devices", "3"]) == 0
        out = capsys.readouterr().out
        assert "u280-x3: 3 devices, usable resources" in out
        assert "u280-1 -> u280-2  qsfp/1 -> qsfp/0  aurora-64b66b   103 Gb/s  12.5 GB/s" in out

    @pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
    def test_shows_the_examples(self, path, capsys):
        assert main(["cluster", str(path)]) == 0
        assert path.stem in capsys.readouterr().out

    def test_json(self, capsys):
        assert main(["cluster", str(EXAMPLES / "vcu118-vcu129-chain.yaml"), "--json"]) == 0
        value = json.loads(capsys.readouterr().out)
        assert [device["board"] for device in value["devices"]] == ["vcu118"] * 2 + ["vcu129"] * 2
        assert value["links"][2]["protocol"] == "200g-ethernet"
        assert set(value["boards"]) == {"vcu118", "vcu129"}

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            ([], "give a cluster file, or --board and --devices"),
            (
                ["--devices", "3"],
                "give a cluster file, or --board and --devices, and not --devices alone",
            ),
            (
                ["some.yaml", "--board", "u280"],
                "a cluster file says which boards there are, so leave out --board",
            ),
            (
                ["some.yaml", "--devices", "2"],
                "a cluster file says which boards there are, so leave out --devices",
            ),
            (["--board", "u28O"], "there is no board named 'u28O'; did you mean 'u280'?"),
            (["none.yaml"], "none.yaml: there is no such file"),
        ],
    )
    def test_errors(self, args, message, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert main(["cluster", *args]) == 2
        assert capsys.readouterr().err == f"error: {message}\n"

    def test_a_number_that_is_none_is_refused(self, capsys):
        assert main(["cluster", "--board", "u280", "--devices", "1e9"]) == 2
        assert "not a valid integer" in capsys.readouterr().err

    def test_other_commands_get_the_cluster_by_options(self):
        seen = []

        @click.command()
        @cluster_options
        def other(cluster):
            seen.append(cluster.name)

        other.main(["--board", "u280"], standalone_mode=False)
        other.main(["--board", "u280", "--devices", "2"], standalone_mode=False)
        path = str(EXAMPLES / "u55c-ring.yaml")
        other.main(["--cluster", path], standalone_mode=False)
        assert seen == ["u280-x1", "u280-x2", "u55c-ring"]
