"""The transport to SoCs of LiteX: its own server and client, before a SoC behind a serial line."""

import contextlib
import itertools

import numpy as np
import pytest

pytest.importorskip("litex", reason="LiteX is not installed: pip install 'fpgapipe[litex]'")

from litex_cases import COMMANDS, Soc, csr_csv, served, together, transport_to
from run_cases import small_build
from test_pipeline import CORE

from fpgapipe.boards.address import Address
from fpgapipe.errors import UserError
from fpgapipe.host.build.build import open_build
from fpgapipe.host.driver.core_driver import CoreDriver, DeviceFault
from fpgapipe.host.driver.device_memory import DeviceMemory, MemoryFault
from fpgapipe.host.driver.transport import TransportError
from fpgapipe.host.runtime.checkpoint import Checkpoint
from fpgapipe.host.transports.litex import LitexTransport
from fpgapipe.host.transports.modelled import ModelledCluster, ModelledTransport

SIZE = 1 << 20


def model(size=SIZE, core=CORE):
    return ModelledTransport(ModelledCluster([core], [size], []), 0)


@pytest.fixture(scope="module")
def way(tmp_path_factory):
    inner = model()
    with transport_to(inner, tmp_path_factory.mktemp("soc"), SIZE) as found:
        found.inner = inner
        yield found


def test_the_host_brings_the_sdram_up(way):
    assert way.soc.commands == COMMANDS
    assert way.soc.is_up


@pytest.mark.parametrize(
    ("begin", "size"),
    [
        *((begin, size) for begin in range(4) for size in (1, 2, 3, 4, 5, 8)),
        *((4096, 1020), (4095, 1021), (5003, 1030), (0, 16384), (4, 16388), (1, 16391), (2, 36864)),
    ],
)
def test_memory_of_any_place_and_size(begin, size, way):
    """Bytes beside those that are written stay; LiteX writes whole words."""
    rng = np.random.default_rng(size + begin)
    before = rng.integers(0, 256, 1 << 16, dtype=np.uint8)
    way.inner.write(0, before)
    data = rng.integers(0, 256, size, dtype=np.uint8)
    way.write(begin, data)
    np.testing.assert_array_equal(way.read(begin, size), data)
    expected = before.copy()
    expected[begin : begin + size] = data
    np.testing.assert_array_equal(way.inner.read(0, 1 << 16), expected)


def test_registers_and_checks_of_the_driver(way):
    driver = CoreDriver("card", CORE, way)
    driver.check_identity()
    driver.check_registers()
    assert way.allocate(4096) == 0
    assert way.allocate(1) == 4096
    with pytest.raises(TransportError, match=r"has 1,040,384 bytes of memory left, and 1,040,385"):
        way.allocate(1_040_385)


def test_training_over_litex(tmp_path, monkeypatch, cli):
    """Three steps of digits on two devices leave the model's bits."""
    small_build(tmp_path / "b", monkeypatch)
    monkeypatch.chdir(tmp_path)
    build = open_build(tmp_path / "b")
    size = 1 << 24
    cluster = ModelledCluster(build.cores, [size] * 2, build.pipeline.wiring)
    lines = ["format: 1", "name: lab", "topology: chain", "devices:"]
    others = together(cluster)
    with contextlib.ExitStack() as stack:
        for number, node in enumerate(build.plan.nodes):
            soc = Soc(ModelledTransport(cluster, number), None, *others)
            stack.enter_context(contextlib.closing(soc))
            server = stack.enter_context(served(soc.port))
            (tmp_path / f"{number}.csv").write_text(csr_csv(size))
            address = f"{{device: '{server}', csr: {number}.csv}}"
            lines.append(f"  - {{name: c{number}, board: {node.board}, address: {address}}}")
        (tmp_path / "lab.yaml").write_text("\n".join(lines) + "\n")
        board = ("--backend", "litex", "--cluster", "lab.yaml")
        data = ("--data", "random", "--no-validation", "--steps", 3)
        code, _, err = cli("run", "b", *data, *board, "--check")
        assert code == 0, err
    assert cli("run", "b", *data, "--backend", "model")[0] == 0
    states = [
        Checkpoint.read(max((build.run_folder / name / "checkpoints").glob("*.ckpt"))).state
        for name in ("litex", "model")
    ]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        np.testing.assert_array_equal(value, states[1][name], err_msg=name)


class TestFaults:
    def test_no_server(self, tmp_path):
        (tmp_path / "csr.csv").write_text(csr_csv(SIZE))
        with pytest.raises(TransportError, match=r"no litex_server answers at 127.0.0.1:9: "):
            LitexTransport("127.0.0.1:9", tmp_path / "csr.csv")

    @pytest.mark.parametrize("server", ["0", "localhost", ":1234", "localhost:x"])
    def test_what_is_no_server(self, server, tmp_path):
        with pytest.raises(UserError, match=r"must be the host and port of its litex_server, as"):
            LitexTransport(server, tmp_path / "csr.csv")

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("memory_region,fpgapipe", "memory_region,other", "is not the map of a SoC of fpgapi"),
            ("sdram_dfii_control", "sdram_control", "is not the map of a SoC of fpgapipe's pack"),
            ("control:0:0:14:20000", "wait:0:0:14:20000", "the step wait:0:0:14:20000 of fpgapip"),
            ("constant,config_csr_data_width,32,,\n", "", "is not a csr.csv of LiteX"),
            ("0x40000000,", "memory,", "is not a csr.csv of LiteX"),
            (",,", ",", "is not a csr.csv of LiteX"),
        ],
    )
    def test_a_wrong_map(self, old, new, message, tmp_path):
        text = csr_csv(SIZE)
        assert old in text
        (tmp_path / "csr.csv").write_text(text.replace(old, new))
        with pytest.raises(UserError, match=message):
            LitexTransport("127.0.0.1:9", tmp_path / "csr.csv")

    def test_a_missing_map(self, tmp_path):
        with pytest.raises(UserError, match=r"none.csv cannot be read: No such file"):
            LitexTransport("127.0.0.1:9", tmp_path / "none.csv")
        with pytest.raises(UserError, match=r"--backend litex needs the key csr, the path of the"):
            LitexTransport.open(Address(device="127.0.0.1:9"), None, tmp_path)

    def test_a_silent_device(self, tmp_path):
        """LiteX's client would go on with zeros."""
        message = r"is lost: no answer came within 0.5 s, or the server has ended; look at"
        silent = transport_to(model(), tmp_path, SIZE, lambda data: b"", limit_s=0.5)
        with pytest.raises(TransportError, match=message), silent:
            pass

    def test_a_device_that_falls_silent(self, tmp_path):
        answers = iter(range(10**9))

        def cut(data):
            return data if next(answers) < 60 else data[:2]

        with transport_to(model(), tmp_path, SIZE, cut, limit_s=0.5) as way:
            with pytest.raises(TransportError, match=r"no answer came within 0.5 s"):
                way.read(0, 1 << 16)
            with pytest.raises(TransportError, match=r"is lost: no answer came"):
                way.write_register(0, 1)  # a late answer must not be taken for the next one

    def test_a_server_that_ends(self, tmp_path):
        soc = Soc(model())
        (tmp_path / "csr.csv").write_text(csr_csv(SIZE))
        with contextlib.closing(soc):
            with served(soc.port) as server:
                way = LitexTransport(server, tmp_path / "csr.csv", limit_s=2)
            with way, pytest.raises(TransportError, match=r"is lost: "):
                way.read(0, 1 << 16)

    def test_a_bit_that_is_wrong(self, tmp_path):
        with transport_to(model(), tmp_path, SIZE) as way:
            way.soc.damage = lambda data: bytes([data[0] ^ 1, *data[1:]])
            with pytest.raises(
                MemoryFault, match=r"^card: .* read as something else than what was"
            ):
                DeviceMemory(way, 0, SIZE, "card")[0:4096] = np.full(4096, 5, np.uint8)

    def test_a_word_that_is_never_the_same(self, tmp_path):
        """Bytes beside those that are written are written again, as they were read."""
        with transport_to(model(), tmp_path, SIZE) as way:
            turns = itertools.count()
            way.soc.damage = lambda data: bytes([data[0] ^ next(turns) % 7, *data[1:]])
            with pytest.raises(TransportError, match=r"memory at 0x0 reads as something else each"):
                way.write(1, np.full(3, 5, np.uint8))

    def test_a_reset_soc(self, tmp_path):
        """Its SDRAM keeps nothing before it is brought up again."""
        with transport_to(model(), tmp_path, SIZE) as way:
            way.soc.commands.clear()
            with pytest.raises(
                MemoryFault, match=r"^card: .* read as something else than what was"
            ):
                DeviceMemory(way, 0, SIZE, "card")[0:4096] = np.full(4096, 5, np.uint8)

    def test_another_bitstream(self, tmp_path):
        with transport_to(model(), tmp_path, SIZE) as way:
            way.soc.damage = lambda data: b"\xff" * len(data)
            with pytest.raises(DeviceFault, match=r"its registers read as 0xffffffff, so no core"):
                CoreDriver("card", CORE, way).check_identity()
