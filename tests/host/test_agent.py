"""The device agent and its clients: secrets, certificates, possession, faults."""

import contextlib
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import agent_cases
import numpy as np
import pytest
from agent_cases import TOKEN, agent_of, client_of, free_place, made_keys, model_of, served
from step_cases import every_operator
from test_backends import pipeline_of
from test_pipeline import SAMPLES
from transport_cases import Faulty

from fpgapipe.errors import FileError, UserError
from fpgapipe.host.driver.core_driver import CoreDriver
from fpgapipe.host.driver.transport import TransportError
from fpgapipe.host.transports import agent, agent_protocol, agent_secrets, agent_server
from fpgapipe.host.transports.agent_protocol import Place
from fpgapipe.hw.hls_models.model.registers import RegisterMap

SIZE = 1 << 20


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return made_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def core():
    return pipeline_of(every_operator(SAMPLES), 2, "gpipe").parts[0].core


@pytest.fixture(scope="module")
def registers(core):
    return RegisterMap(core)


@pytest.fixture
def device(core):
    """A device whose accesses tests may change."""
    return Faulty(model_of(core, SIZE))


@pytest.fixture
def place(keys, device):
    with agent_of(keys, served("front", device)) as place:
        yield place


# ---------------------------------------------------------------------- it works


def test_a_device_behind_an_agent(place, keys, core, device):
    with client_of(place, "front", keys) as way:
        assert (way.kind, way.board) == ("model", "u280")
        CoreDriver("front", core, way).check_identity()
        address = way.allocate(SIZE)
        assert address == 0x10000
        data = np.random.default_rng(0).integers(0, 256, SIZE, dtype=np.uint8)
        way.write(address, data)
        np.testing.assert_array_equal(way.read(address, SIZE), data)
        np.testing.assert_array_equal(way.read(address + 77, 300_001), data[77 : 77 + 300_001])
        np.testing.assert_array_equal(device.inner.read(address, SIZE), data)


def test_registers_in_one_transfer(place, keys, registers, device):
    with client_of(place, "front", keys) as way:
        names = ("PROGRAM_LO", "MEMORY_LIMIT_LO", "PROGRAM_HI")
        pairs = [(registers.offset(name), 64 * index) for index, name in enumerate(names)]
        way.write_registers(pairs)
        assert way.read_registers([offset for offset, _ in pairs]) == [0, 64, 128]
        offset = pairs[0][0]
        assert way.read_registers([offset] * 3000) == [0] * 3000


# ---------------------------------------------------------------------- secrets


def test_a_new_token(tmp_path, monkeypatch):
    path = tmp_path / "token"
    agent_secrets.new_token(path)
    token = agent_secrets.token_from(path)
    assert len(token) == 43
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UserError, match="token cannot be written: File exists"):
        agent_secrets.new_token(path)
    monkeypatch.setenv(agent_secrets.VARIABLE, token)
    assert agent_secrets.token_from(None) == token


@pytest.mark.parametrize("text", ["", "short", "é" * 20, "a" * 257, "a b\nc" * 5])
def test_no_token(text, tmp_path, monkeypatch):
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(text)
    with pytest.raises(UserError, match=r"16\.\.256 printable ASCII characters"):
        agent_secrets.token_from(path)
    monkeypatch.delenv(agent_secrets.VARIABLE, raising=False)
    with pytest.raises(UserError, match="there is no token: name its file"):
        agent_secrets.token_from(None)


def test_a_secret_that_others_can_read(tmp_path, keys):
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o640)
    with pytest.raises(FileError, match="others can read this secret; 'chmod 600"):
        agent_secrets.token_from(path)
    key = tmp_path / "key"
    key.write_bytes(keys.key.read_bytes())
    key.chmod(0o644)
    with pytest.raises(FileError, match="others can read this secret"):
        agent_secrets.own_certificate(keys.certificate, key)


def test_a_key_of_another_certificate(tmp_path, keys):
    other = made_keys(tmp_path)
    with pytest.raises(UserError, match="are no certificate and its key without a password"):
        agent_secrets.own_certificate(keys.certificate, other.key)
    with pytest.raises(UserError, match="are no certificate and its key"):
        agent_secrets.own_certificate(keys.key, keys.key)
    with pytest.raises(FileError, match="must be certificates in PEM"):
        agent_secrets.certificates(keys.key)


@pytest.mark.parametrize("token", ["another token of the tests", TOKEN[:-1], TOKEN + "x"])
def test_a_wrong_token(token, place, keys):
    with pytest.raises(TransportError, match="refuses this client: the token is missing or wrong"):
        client_of(place, "front", keys, token)
    client_of(place, "front", keys).close()


def test_each_call_needs_the_token(place, keys):
    """A session that was overheard is of no use without the token."""
    with client_of(place, "front", keys) as way:
        way._metadata = (("authorization", "Bearer x"), way._metadata[1])
        with pytest.raises(TransportError, match="the token is missing or wrong"):
            way.read_register(0)


# ---------------------------------------------------------------------- certificates, places


def test_an_expired_certificate(tmp_path, device):
    old = made_keys(tmp_path, last_days=-2)
    with (
        agent_of(old, served("front", device)) as place,
        pytest.raises(TransportError, match="is not trusted: certificate has expired"),
    ):
        client_of(place, "front", old)


def test_a_certificate_of_another_host(tmp_path, device):
    other = made_keys(tmp_path, hosts=["lab-a"])
    with (
        agent_of(other, served("front", device)) as place,
        pytest.raises(TransportError, match="not trusted: Hostname mismatch"),
    ):
        client_of(place, "front", other)


def test_a_certificate_that_is_not_trusted(tmp_path, place):
    other = made_keys(tmp_path)
    with pytest.raises(TransportError, match=r"not trusted: self.signed certificate"):
        client_of(place, "front", other)


def test_nothing_listens(keys):
    with pytest.raises(TransportError, match="does not run: nothing listens there; 'fpgapipe age"):
        client_of(free_place(), "front", keys)


def test_no_such_host(keys):
    with pytest.raises(TransportError, match="cannot be reached"):
        client_of("no-such-host.invalid:7000", "front", keys)


@contextlib.contextmanager
def listener(answer):
    """Something else that listens; gives its place."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept = []

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    kept.append(server.accept()[0])
                    answer(kept[-1])

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield Place("localhost", server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for each in kept:
            each.close()


@pytest.mark.parametrize("text", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.0 400 Bad\r\n\r\n", b""])
def test_something_else_listens(text, keys):
    def answer(plain):
        plain.recv(1)
        plain.sendall(text)
        plain.shutdown(socket.SHUT_RDWR)

    with (
        listener(answer) as place,
        pytest.raises(TransportError, match="something else than an agent listens there"),
    ):
        client_of(place, "front", keys)


def test_another_server_with_the_certificate(keys):
    """TLS is right, but it is a web server of old."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.certificate, keys.key)

    def answer(plain):
        with contextlib.suppress(OSError), context.wrap_socket(plain.dup(), server_side=True) as s:
            s.recv(1)

    with (
        listener(answer) as place,
        pytest.raises(TransportError, match="something else than an agent listens there"),
    ):
        client_of(place, "front", keys)


def test_a_listener_that_says_nothing(keys, monkeypatch):
    monkeypatch.setattr(agent, "REACH_LIMIT_S", 0.3)
    with (
        listener(lambda plain: None) as place,
        pytest.raises(TransportError, match=r"does not answer in 0\.3 s"),
    ):
        client_of(place, "front", keys)


@pytest.mark.parametrize(
    "text", ["lab", "lab:", ":7000", "lab:0", "lab:65536", "lab:-1", "lab:7e3", "lab:٣", "[]:7000"]
)
def test_no_place(text):
    with pytest.raises(UserError, match="must be named by host and port"):
        Place.of(text)


def test_places():
    assert Place.of("lab-a:7000") == Place("lab-a", 7000)
    assert Place.of("[::1]:65535") == Place("::1", 65535)
    assert str(Place.of("[::1]:1")) == "[::1]:1"


def test_a_port_that_is_taken(place, keys, device):
    with (
        pytest.raises(UserError, match=r"no agent can listen at .*: something else listens there"),
        agent_of(keys, served("front", device), place=place),
    ):
        pass
    with (
        listener(lambda plain: None) as other,
        pytest.raises(UserError, match="something else listens there"),
        agent_of(keys, served("front", device), place=other),
    ):
        pass


# ---------------------------------------------------------------------- possession


def test_a_device_has_one_client(place, keys, device, monkeypatch):
    monkeypatch.setattr(agent_server, "TAKE_LIMIT_S", 0.2)
    with client_of(place, "front", keys) as first:
        with pytest.raises(TransportError, match=r"front is in use by the client 127.* since \d"):
            client_of(place, "front", keys)
        first.read_register(0)
    monkeypatch.setattr(agent_server, "TAKE_LIMIT_S", 10)
    with client_of(place, "front", keys) as second:
        second.read_register(0)
        with pytest.raises(TransportError, match=r"the connection to .* was closed"):
            first.read_register(0)


def test_a_device_that_it_does_not_serve(place, keys):
    with pytest.raises(TransportError, match="it serves front and no other device"):
        client_of(place, "back", keys)


def test_another_version_of_the_messages(place, keys, monkeypatch):
    monkeypatch.setattr(agent_protocol, "PROTOCOL", 2)
    asked = []
    inner = agent.json.dumps
    monkeypatch.setattr(
        agent.json, "dumps", lambda value: asked.append(value) or inner({**value, "protocol": 1})
    )
    with pytest.raises(TransportError, match="has version 2 of the messages, and the client anoth"):
        client_of(place, "front", keys)
    assert asked


def test_each_client_opens_the_device_anew(keys, core):
    opened, closed = [], []

    def opens():
        opened.append(model_of(core, SIZE))
        return opened[-1]

    device = agent_server.Served("front", "u280", "model", opens, closed.append)
    with agent_of(keys, device) as place:
        for _ in range(3):
            with client_of(place, "front", keys) as way:
                assert way.allocate(SIZE) == 0x10000  # all of it, each time
    assert closed == opened
    assert len(opened) == 3


def test_a_device_that_cannot_be_opened(keys):
    def opens():
        raise TransportError("/dev/xdma0_user cannot be opened: No such file or directory")

    def breaks():
        raise ZeroDivisionError

    devices = [
        agent_server.Served("front", "u280", "xdma", opens),
        agent_server.Served("back", "u280", "xdma", breaks),
    ]
    with agent_of(keys, *devices) as place:
        for _ in range(2):  # it is free again after the error
            with pytest.raises(TransportError, match=r"localhost:\d+: /dev/xdma0_user cannot be o"):
                client_of(place, "front", keys)
        with pytest.raises(TransportError, match="back: an access failed with ZeroDivisionError"):
            client_of(place, "back", keys)


CLIENT = """
import sys, pathlib
sys.path.insert(0, {cases!r})
from agent_cases import AgentTransport, TOKEN
way = AgentTransport({place!r}, "front", pathlib.Path({ca!r}), TOKEN)
way.write_register({offset}, 64)
print("has it", flush=True)
sys.stdin.read()
"""


def test_the_device_of_a_client_that_dies_is_free(place, keys, registers, device, monkeypatch):
    monkeypatch.setattr(agent_server, "TAKE_LIMIT_S", 10)
    cases = str(Path(agent_cases.__file__).parent)
    offset = registers.offset("PROGRAM_LO")
    program = CLIENT.format(cases=cases, place=str(place), ca=str(keys.certificate), offset=offset)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "has it\n"
        process.kill()
    with client_of(place, "front", keys) as way:
        assert way.read_register(offset) == 64


# ---------------------------------------------------------------------- faults while it runs


def test_an_agent_that_disappears(keys, device, registers):
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(agent_of(keys, served("front", device)))
        way = client_of(place, "front", keys)
        way.read_register(0)
        stack.close()
        begin_s = time.monotonic()
        with pytest.raises(TransportError, match=r"the agent at localhost:\d+ is gone"):
            way.read_register(0)
        for _ in range(100):  # each at once
            with pytest.raises(TransportError, match="is gone"):
                way.write_register(registers.offset("PROGRAM_LO"), 1)
        assert time.monotonic() - begin_s < 30
        way.close()


def test_an_agent_that_was_started_anew(keys, device):
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(agent_of(keys, served("front", device)))
        way = client_of(place, "front", keys)
        stack.close()
        with (
            agent_of(keys, served("front", device), place=place),
            pytest.raises(TransportError, match=r"no longer has this client|is gone"),
        ):
            way.read_register(0)
        way.close()


def test_a_transfer_that_is_cut(keys, device):
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(agent_of(keys, served("front", device)))
        way = client_of(place, "front", keys)
        address = way.allocate(SIZE)
        parts = iter(range(10))

        def third(at, data):
            if next(parts) == 2:
                threading.Thread(target=stack.close).start()
                time.sleep(0.2)
            return data

        device.on_store = third
        with pytest.raises(
            TransportError,
            match=r"write of 1,048,576 bytes at 0x10000 failed after \d{3},\d{3} bytes: .* is gone",
        ):
            way.write(address, np.zeros(SIZE, np.uint8))
        way.close()


def test_a_device_that_hangs(place, keys, device):
    go_on = threading.Event()

    def hangs(offset, value):
        go_on.wait(30)
        return value

    with client_of(place, "front", keys, call_s=0.3) as way:
        device.on_read = hangs
        with pytest.raises(TransportError, match=r"did not answer within 0\.3 s"):
            way.read_register(0)
        with pytest.raises(TransportError, match=r"did not answer within 0\.3 s"):
            way.read_register(0)
        go_on.set()


def test_a_device_that_is_long_in_opening(keys, core):
    def opens():
        time.sleep(0.8)
        return model_of(core, SIZE)

    with (
        agent_of(keys, agent_server.Served("front", "u280", "model", opens)) as place,
        pytest.raises(TransportError, match=r"did not open front in 0\.3 s"),
    ):
        client_of(place, "front", keys, open_s=0.3)


def test_a_pause_that_takes_long(place, keys, device, monkeypatch):
    """Devices that are models compute meanwhile, longer than a call may last."""
    monkeypatch.setattr(agent_protocol, "LONGEST_PAUSE_S", 0.05)
    pauses = []

    def pause(pause_s):
        pauses.append(pause_s)
        time.sleep(0.4)

    device.pause = pause
    with client_of(place, "front", keys, call_s=0.3) as way:
        way.pause(10)
    assert pauses == [0.05]


def test_errors_of_the_device(place, keys, device):
    def fails(*_):
        raise TransportError("/dev/xdma0_user: read of 4 bytes at 0x0 failed after 0 bytes: Input")

    def breaks(*_):
        raise OSError("the device is broken")

    with client_of(place, "front", keys) as way:
        inner = device.on_read
        device.on_read = fails
        with pytest.raises(TransportError, match=r"the agent at localhost:\d+: /dev/xdma0_user: r"):
            way.read_register(0)
        device.on_read = breaks
        with pytest.raises(TransportError, match="front: an access failed with OSError; the agent"):
            way.read_register(0)
        device.on_read = inner
        way.read_register(0)
        with pytest.raises(TransportError, match="the device has 1,048,576 bytes of memory left"):
            way.allocate(1 << 30)
        with pytest.raises(TransportError, match="memory must be 1"):
            way.allocate(0)
