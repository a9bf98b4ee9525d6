"""Bad messages for the device agent: each is refused in a sentence, and disturbs no client."""

import contextlib
import math
import socket
import struct

import grpc
import numpy as np
import pytest
from agent_cases import agent_of, client_of, made_keys, model_of, served
from hypothesis import given, settings
from hypothesis import strategies as st
from test_pipeline import CORE

from fpgapipe.host.transports import agent_protocol


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return made_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def place(keys):
    with agent_of(keys, served("front", model_of(CORE, 1 << 20))) as place:
        yield place


@pytest.fixture
def raw(place, keys):
    """Calls of methods of an agent with any bytes, with a session that has a page of memory."""
    with client_of(place, "front", keys) as way:
        address = way.allocate(4096)

        def call(method, request, metadata=way._metadata):
            function = way._channel.unary_unary(f"/{agent_protocol.SERVICE}/{method}")
            try:
                function(request, metadata=metadata, timeout=20)
            except grpc.RpcError as error:
                return error.code().name, error.details()
            return "OK", ""

        call.way, call.address = way, address
        yield call


NUMBER, SPAN, SECONDS = agent_protocol.NUMBER, agent_protocol.SPAN, agent_protocol.SECONDS


@pytest.mark.parametrize(
    ("method", "request_of", "message"),
    [
        ("ReadRegisters", lambda at: b"", "a message has 1..1024 registers of 4 bytes, not 0"),
        ("ReadRegisters", lambda at: b"abc", "registers of 4 bytes, not 3 bytes"),
        ("ReadRegisters", lambda at: bytes(4 * 1025), "registers of 4 bytes, not 4100 bytes"),
        ("ReadRegisters", lambda at: struct.pack("<I", 2), "there is no register at 0x2"),
        ("ReadRegisters", lambda at: struct.pack("<I", 4096), "there is no register at 0x1000"),
        ("ReadRegisters", lambda at: b"\xfc\xff\xff\xff", "there is no register at 0xfffffffc"),
        ("WriteRegisters", lambda at: struct.pack("<I", 4), "registers of 8 bytes, not 4 bytes"),
        ("WriteRegisters", lambda at: struct.pack("<II", 1, 4), "there is no register at 0x1"),
        ("Allocate", lambda at: b"", "8 bytes"),
        ("Allocate", lambda at: NUMBER.pack(0), "memory must be 1.."),
        ("Allocate", lambda at: NUMBER.pack(1 << 63), "memory must be 1.."),
        ("Read", lambda at: SPAN.pack(at, 0), "a message has 1..262,144 bytes, not 0"),
        ("Read", lambda at: SPAN.pack(at, 1 << 31), "a message has 1..262,144 bytes, not 2,147"),
        ("Read", lambda at: SPAN.pack(at, 4097), "4,097 bytes at 0x10000 are not in memory that"),
        ("Read", lambda at: SPAN.pack(at - 1, 1), "1 bytes at 0xffff are not in memory that was"),
        ("Read", lambda at: SPAN.pack((1 << 64) - 1, 2), "are not in memory that was reserved"),
        ("Write", lambda at: b"1234", "8 bytes"),
        ("Write", lambda at: NUMBER.pack(at), "a message has 1..262,144 bytes, not 0"),
        ("Write", lambda at: NUMBER.pack(at + 4095) + b"ab", "2 bytes at 0x10fff are not in memor"),
        ("Pause", lambda at: SECONDS.pack(math.nan), "a pause must be 0..1 s"),
        ("Pause", lambda at: SECONDS.pack(math.inf), "a pause must be 0..1 s"),
        ("Pause", lambda at: SECONDS.pack(-1), "a pause must be 0..1 s"),
        ("Pause", lambda at: SECONDS.pack(1e9), "a pause must be 0..1 s"),
        ("Pause", lambda at: b"", "8 bytes"),
    ],
)
def test_messages_that_are_refused(method, request_of, message, raw):
    code, details = raw(method, request_of(raw.address))
    assert code in ("INVALID_ARGUMENT", "ABORTED")
    assert message in details
    raw.way.read_register(0)  # the device is still this client's


def test_a_huge_message(raw):
    code, details = raw("Write", NUMBER.pack(raw.address) + bytes(1 << 20))
    assert code == "RESOURCE_EXHAUSTED"
    assert "larger than max" in details
    raw.way.read_register(0)


def test_calls_of_nobody(raw, place, keys):
    (token, _) = raw.way._metadata
    for metadata in ((token,), (token, ("fpgapipe-session", "0" * 32))):
        assert raw("Pause", SECONDS.pack(0), metadata)[0] == "FAILED_PRECONDITION"
    for metadata in ((), (("authorization", ""),), (("authorization", "Bearer"),)):
        assert raw("Pause", SECONDS.pack(0), metadata)[0] == "UNAUTHENTICATED"
    assert raw("Reset", b"")[0] == "UNIMPLEMENTED"


@pytest.mark.parametrize(
    "request_", [b"", b"\xff", b"[]", b"{}", b'{"protocol": 1}', b"[" * 10_000, b"null"]
)
def test_requests_for_no_device(request_, raw):
    hold = raw.way._channel.unary_stream(f"/{agent_protocol.SERVICE}/Hold")
    with pytest.raises(grpc.RpcError) as caught:
        next(hold(request_, metadata=raw.way._metadata[:1], timeout=20))
    assert caught.value.code().name == "INVALID_ARGUMENT"


METHODS = ("ReadRegisters", "WriteRegisters", "Allocate", "Read", "Write", "Pause")


def test_any_bytes(raw):
    """Whatever comes is done or refused in a sentence, and nothing of the agent's inside breaks."""

    @settings(max_examples=300)
    @given(st.sampled_from(METHODS), st.binary(max_size=40))
    def tries(method, request):
        code, details = raw(method, request)
        assert code in ("OK", "INVALID_ARGUMENT", "ABORTED"), details
        assert "the agent's log has more" not in details

    tries()
    raw.way.read_register(0)


def test_garbage_on_the_line(place, keys):
    """Bytes that are no TLS, and a connection that says nothing, disturb no client."""
    random = np.random.default_rng(0)
    with client_of(place, "front", keys) as way, contextlib.ExitStack() as stack:
        for size in (0, 1, 100, 100_000):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", place.port)))
            with contextlib.suppress(OSError):
                line.sendall(random.bytes(size))
        way.read_register(0)
    client_of(place, "front", keys).close()
