"""Device agents before callers who have no token, who are many, and who stand still."""

import asyncio
import contextlib
import functools
import logging
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import agent_cases
import grpc
import pytest
import test_pipeline
from agent_cases import TOKEN, agent_of, client_of, free_place, made_keys, model_of, served
from test_pipeline import CORE
from transport_cases import Faulty

from fpgapipe.host.driver.transport import TransportError
from fpgapipe.host.transports import agent_protocol, agent_server, agent_strangers
from fpgapipe.host.transports.agent_protocol import SERVICE

PAUSE = agent_protocol.SECONDS.pack(0.5)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return made_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def device():
    return Faulty(model_of(CORE, 1 << 20))


@pytest.fixture
def place(keys, device):
    with agent_of(keys, served("front", device)) as place:
        yield place


@contextlib.contextmanager
def channel_to(place, keys):
    credentials = grpc.ssl_channel_credentials(keys.certificate.read_bytes())
    with grpc.secure_channel(str(place), credentials) as channel:
        yield channel


@contextlib.contextmanager
def many(number, act):
    """Do something over and over in many threads meanwhile."""
    over = threading.Event()

    def loop():
        while not over.is_set():
            act()

    with ThreadPoolExecutor(number) as pool:
        doing = [pool.submit(loop) for _ in range(number)]
        try:
            yield
        finally:
            over.set()
    for each in doing:
        each.result()


# ---------------------------------------------------------------------- without a token


def problems(caplog):
    """Warnings and errors in the log; a client that comes or goes is neither."""
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def test_calls_without_the_token_take_no_place_of_the_owners(place, keys):
    codes = set()
    with client_of(place, "front", keys) as owner, channel_to(place, keys) as channel:
        pause = channel.unary_unary(f"/{SERVICE}/Pause")

        def tries():
            try:
                pause(PAUSE, timeout=20)
            except grpc.RpcError as error:
                codes.add(error.code().name)

        with many(64, tries):
            for _ in range(200):
                owner.read_register(0)
    # A connection's first calls may be more than it may have.
    assert {"UNAUTHENTICATED"} <= codes <= {"UNAUTHENTICATED", "UNAVAILABLE"}


def test_a_strangers_message_is_not_received(place, keys):
    with channel_to(place, keys) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/{SERVICE}/Write")(bytes(1 << 20), timeout=20)
    assert caught.value.code().name == "UNAUTHENTICATED"  # one with the token is told its size


def test_a_strangers_holds_are_refused(place, keys):
    with client_of(place, "front", keys) as owner:
        for _ in range(3):
            with pytest.raises(TransportError, match="refuses this client: the token is missing"):
                client_of(place, "front", keys, TOKEN + "x")
        owner.read_register(0)


def test_a_refused_peer_is_logged_once_a_second(monkeypatch, caplog):
    clock = [0.0]
    slept = []

    async def sleep(time_s):
        slept.append(time_s)

    monkeypatch.setattr(agent_strangers, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(agent_strangers, "asyncio", SimpleNamespace(sleep=sleep))
    strangers = agent_strangers.Strangers()

    def calls(count, address):
        for _ in range(count):
            asyncio.run(strangers.refused(address))

    log = logging.getLogger(agent_strangers.__name__)
    monkeypatch.setattr(log, "handlers", [caplog.handler])
    monkeypatch.setattr(log, "propagate", False)
    calls(100, "10.0.0.1:4000")
    calls(1, "10.0.0.2:4000")
    clock[0] = 1.5
    calls(2, "10.0.0.1:4001")
    assert problems(caplog) == [
        "refused 10.0.0.1:4000, which has no right token",
        "refused 10.0.0.2:4000, which has no right token",
        "refused 10.0.0.1:4001, which has no right token (and 99 calls before)",
    ]
    assert slept[:3] == pytest.approx([0.1, 0.2, 0.3])
    assert max(slept) == agent_strangers.LONGEST_DELAY_S
    assert len(slept) == 100  # the first call of either peer was answered at once, as after a pause


def test_peers_are_forgotten(monkeypatch):
    monkeypatch.setattr(agent_strangers, "MOST_PEERS", 3)
    strangers = agent_strangers.Strangers()
    for number in range(10):
        asyncio.run(strangers.refused(f"10.0.0.{number}:1"))
    assert list(strangers._peers) == ["10.0.0.7", "10.0.0.8", "10.0.0.9"]


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.1.2.3:77", "10.1.2.3"),
        ("[::ffff:10.1.2.3]:77", "10.1.2.3"),
        ("[2001:db8:1:2:3:4:5:6]:77", "2001:db8:1:2::/64"),
        ("[fe80::1%eth0]:77", "fe80::/64"),
        ("somewhere", ""),
    ],
)
def test_what_one_peer_is(address, host):
    assert agent_strangers._host(address) == host


def is_ended(line):
    line.settimeout(20)
    try:
        while line.recv(1 << 12):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_idle_connections_are_ended(keys, device, monkeypatch):
    monkeypatch.setattr(agent_server, "HANDSHAKE_LIMIT_S", 1)
    context = ssl.create_default_context(cafile=keys.certificate)
    context.set_alpn_protocols(["h2"])
    with agent_of(keys, served("front", device)) as place, contextlib.ExitStack() as stack:
        owner = stack.enter_context(client_of(place, "front", keys))
        plain, line = (
            stack.enter_context(socket.create_connection(("127.0.0.1", place.port)))
            for _ in range(2)
        )
        secure = stack.enter_context(context.wrap_socket(line, server_hostname="localhost"))
        secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5))
        assert is_ended(plain)
        assert is_ended(secure)
        owner.read_register(0)  # which has a device, and so is not idle


def test_connections_leave_files_to_devices(keys, device, monkeypatch):
    monkeypatch.setattr(agent_server, "MOST_CONNECTIONS", 8)
    with agent_of(keys, served("front", device)) as place, contextlib.ExitStack() as stack:
        owner = stack.enter_context(client_of(place, "front", keys))
        for _ in range(8):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", place.port)))
        line.settimeout(20)
        with contextlib.suppress(ConnectionResetError):
            assert line.recv(1) == b""
        owner.read_register(0)


def test_an_agent_may_open_more_files(monkeypatch):
    set_to = []
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: set_to.append(limits))
    for limits in ((1024, 4096), (1024, 1 << 20), (1024, -1), (1 << 20, 1 << 20), (-1, -1)):
        monkeypatch.setattr(resource, "getrlimit", lambda which, limits=limits: limits)
        agent_server.let_open_files()
    assert set_to == [(1024 * 4, 4096), (4352, 1 << 20), (4352, -1)]


# ---------------------------------------------------------------------- with one


def test_clients_that_wait_do_not_starve_the_owner(place, keys):
    with client_of(place, "front", keys) as owner, contextlib.ExitStack() as stack:
        channels = [stack.enter_context(channel_to(place, keys)) for _ in range(40)]
        request = b'{"protocol": 1, "device": "front"}'
        metadata = owner._metadata[:1]
        waiting = [
            channel.unary_stream(f"/{SERVICE}/Hold")(request, metadata=metadata, timeout=20)
            for channel in channels
        ]
        for _ in range(200):
            owner.read_register(0)
        for each in waiting:
            with pytest.raises(grpc.RpcError) as caught:
                next(each)
            assert caught.value.code().name == "ABORTED"
            assert "front is in use by the client 127.0.0.1" in caught.value.details()


def test_clients_of_no_session_do_not_starve_the_owner(place, keys):
    def tries(pause, token):
        with pytest.raises(grpc.RpcError, match="the device was given back"):
            pause(PAUSE, metadata=token, timeout=20)

    # An agent counts a call for a moment longer than its client does, and resets those above
    # MOST_CALLS of a connection: each of three connections stays far below.
    with client_of(place, "front", keys) as owner, contextlib.ExitStack() as stack:
        for _ in range(3):
            channel = stack.enter_context(channel_to(place, keys))
            pause = channel.unary_unary(f"/{SERVICE}/Pause")
            stack.enter_context(many(10, functools.partial(tries, pause, owner._metadata[:1])))
        for _ in range(200):
            owner.read_register(0)


def test_parallel_pauses_of_a_session(place, keys, device, caplog):
    device.pause = lambda pause_s: time.sleep(0.01)
    with client_of(place, "front", keys) as owner, ThreadPoolExecutor(16) as pool:
        for _ in range(20):
            list(pool.map(owner.pause, [0.0] * 16))
    assert not problems(caplog)


def test_an_error_of_a_pause_comes_to_all_who_wait(place, keys, device):
    begun = threading.Event()

    def fails(pause_s):
        begun.wait(20)
        raise TransportError("the interrupt is gone")

    device.pause = fails
    with client_of(place, "front", keys) as owner, ThreadPoolExecutor(4) as pool:
        pauses = [pool.submit(owner.pause, 0.0) for _ in range(4)]
        time.sleep(0.3)
        begun.set()
        assert all("the interrupt is gone" in str(each.exception()) for each in pauses)
        owner.read_register(0)


def test_too_many_calls_of_a_session(place, keys, device, monkeypatch):
    monkeypatch.setattr(agent_server, "MOST_CALLS", 2)
    go_on, begun = threading.Event(), threading.Event()

    def hangs(offset, value):
        begun.set()
        go_on.wait(20)
        return value

    with client_of(place, "front", keys) as owner, ThreadPoolExecutor(3) as pool:
        device.on_read = hangs
        first = pool.submit(owner.read_register, 0)
        begun.wait(20)
        rest = [pool.submit(owner.read_register, 0) for _ in range(2)]
        while not any(each.done() for each in rest):
            time.sleep(0.01)
        go_on.set()
        errors = [str(each.exception() or "") for each in (first, *rest)]
        assert errors[0] == ""
        assert sorted(errors[1:])[0] == ""
        assert sorted(errors[1:])[1].endswith("front has 2 calls of this client to do already")
        owner.read_register(0)


# ---------------------------------------------------------------------- who stands still

CLIENT = """
import sys, pathlib
sys.path.insert(0, {cases!r})
from agent_cases import AgentTransport, TOKEN
way = AgentTransport({place!r}, "front", pathlib.Path({ca!r}), TOKEN)
print("has it", flush=True)
sys.stdin.read()
"""

SERVER = """
import sys, pathlib
sys.path[:0] = {paths!r}
from agent_cases import Keys, agent_of, free_place, model_of, served
from fpgapipe.host.terminal.interrupts import wait_for_ctrl_c
from fpgapipe.host.transports import agent_protocol
from fpgapipe.host.transports.agent_protocol import Place
from test_pipeline import CORE
agent_protocol.KEEPALIVE_S = agent_protocol.KEEPALIVE_LIMIT_S = 1
keys = Keys(pathlib.Path({ca!r}), pathlib.Path({key!r}))
with agent_of(keys, served("front", model_of(CORE, 1 << 20)), place=Place.of({place!r})):
    print("serves", flush=True)
    wait_for_ctrl_c()
"""


@contextlib.contextmanager
def process_of(program, line):
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == line
            yield process
        finally:
            process.kill()


def test_a_client_that_stands_still_loses_its_device(keys, device, monkeypatch):
    monkeypatch.setattr(agent_protocol, "KEEPALIVE_S", 1)
    monkeypatch.setattr(agent_protocol, "KEEPALIVE_LIMIT_S", 1)
    monkeypatch.setattr(agent_server, "TAKE_LIMIT_S", 30)
    with agent_of(keys, served("front", device)) as place:
        cases = str(Path(agent_cases.__file__).parent)
        program = CLIENT.format(cases=cases, place=str(place), ca=str(keys.certificate))
        with process_of(program, "has it\n") as process:
            process.send_signal(signal.SIGSTOP)
            with client_of(place, "front", keys) as way:  # without a lease, after a minute
                way.read_register(0)


@pytest.fixture
def apart(keys):
    """An agent in a process of its own: its place and the process."""
    place = free_place()
    paths = [str(Path(each.__file__).parent) for each in (agent_cases, test_pipeline)]
    program = SERVER.format(
        paths=paths, place=str(place), ca=str(keys.certificate), key=str(keys.key)
    )
    with process_of(program, "serves\n") as process:
        yield place, process


def test_an_agent_that_stands_still_is_noticed(keys, apart, monkeypatch):
    monkeypatch.setattr(agent_protocol, "KEEPALIVE_S", 1)
    monkeypatch.setattr(agent_protocol, "KEEPALIVE_LIMIT_S", 1)
    place, process = apart
    with client_of(place, "front", keys, call_s=30) as way:
        way.read_register(0)
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(TransportError, match="is gone"):  # before the call's own limit
            way.read_register(0)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("order", [("CONT", "INT"), ("INT", "CONT")], ids="-".join)
def test_ctrl_c_beside_the_end_of_a_stop(apart, order):
    """Another thread may be handed the signal, as the main one still stands."""
    process = apart[1]
    process.send_signal(signal.SIGSTOP)
    time.sleep(0.1)
    for name in order:
        process.send_signal(getattr(signal, f"SIG{name}"))
    process.wait(20)
