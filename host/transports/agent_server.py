"""The device agent: serves the devices of its host to one client each.

Every call needs the token. What a client asks for is checked before the device sees it: offsets of
registers, and that memory was reserved by this very client.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import math
import secrets
import struct
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from fpgapipe.closing import Closing
from fpgapipe.errors import UserError
from fpgapipe.host.driver.buffers import Buffers
from fpgapipe.host.driver.transport import TransportError
from fpgapipe.host.transports import agent_protocol as protocol
from fpgapipe.host.transports.agent_secrets import authorization
from fpgapipe.hw.hls_models.model.registers import ADDRESS_BITS
from fpgapipe.optional import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fpgapipe.host.driver.transport import Transport

TAKE_LIMIT_S = 2.0
"""Seconds that a client waits for a device whose last client has just gone."""

HANDSHAKE_LIMIT_S = 10
"""Seconds in which a connection must have its TLS."""

MOST_MEMORY = 1 << 48
"""Most bytes of memory, and most of them in a call: addresses have 48 bits."""

logger = logging.getLogger(__name__)


def _close(way: Transport) -> None:
    way.close()


@dataclass(frozen=True)
class Served:
    """A device that an agent serves.

    Attributes
    ----------
    name : str
    board : str
        Name of its board.
    kind : str
        Name of the transport behind the agent.
    open : callable
        Function that opens the device for a client.
    close : callable
        Function that ends what `open` gave.
    accesses : Lock
        Held during each access; simulated devices, which run together, share one.
    """

    name: str
    board: str
    kind: str
    open: Callable[[], Transport]
    close: Callable[[Transport], object] = _close
    accesses: Any = field(default_factory=threading.Lock)


class _Refused(Exception):
    """A call that is answered by an error: a gRPC status by name, and a sentence."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Session:
    """A client's possession of a device."""

    def __init__(self, device: Served, way: Transport) -> None:
        self.device, self._way = device, way
        self._memory: Buffers[None] = Buffers()
        self._is_over = False
        self._pauses = ThreadPoolExecutor(1, thread_name_prefix="pause")
        self._paused: Future[None] | None = None

    def end(self) -> None:
        """Close the device, once no access is under way."""
        self._pauses.shutdown(wait=False)
        with self.device.accesses:
            self._is_over = True
            self.device.close(self._way)

    @contextlib.contextmanager
    def _accessed(self) -> Iterator[Transport]:
        with self.device.accesses:
            if self._is_over:
                raise TransportError("the device was given back")
            yield self._way

    def read_registers(self, request: bytes) -> bytes:
        offsets = _numbers(request, protocol.OFFSET.size)
        with self._accessed() as way:
            values = way.read_registers([_register(int(offset)) for offset in offsets])
        return np.array(values, "<u4").tobytes()

    def write_registers(self, request: bytes) -> bytes:
        pairs = _numbers(request, protocol.PAIR.size).reshape(-1, 2).tolist()
        with self._accessed() as way:
            way.write_registers([(_register(offset), value) for offset, value in pairs])
        return b""

    def allocate(self, request: bytes) -> bytes:
        (size,) = protocol.NUMBER.unpack(request)
        if not 1 <= size <= MOST_MEMORY:
            raise ValueError(f"memory must be 1..{MOST_MEMORY:,} bytes, not {size:,}")
        with self._accessed() as way:
            address = way.allocate(size)
            self._memory.add(address, size, None)
        return protocol.NUMBER.pack(address)

    def read(self, request: bytes) -> bytes:
        address, size = protocol.SPAN.unpack(request)
        if not 1 <= size <= protocol.MOST_BYTES:
            raise ValueError(f"a message has 1..{protocol.MOST_BYTES:,} bytes, not {size:,}")
        self._memory.at(address, size)
        with self._accessed() as way:
            return way.read(address, size).tobytes()

    def write(self, request: bytes) -> bytes:
        (address,) = protocol.NUMBER.unpack_from(request)
        data = np.frombuffer(request, np.uint8, offset=protocol.NUMBER.size)
        if not 1 <= data.size <= protocol.MOST_BYTES:
            raise ValueError(f"a message has 1..{protocol.MOST_BYTES:,} bytes, not {data.size:,}")
        self._memory.at(address, data.size)
        with self._accessed() as way:
            way.write(address, data)
        return b""

    def pause(self, request: bytes) -> bytes:
        (pause_s,) = protocol.SECONDS.unpack(request)
        if not (math.isfinite(pause_s) and 0 <= pause_s <= protocol.LONGEST_PAUSE_S):
            raise ValueError(f"a pause must be 0..{protocol.LONGEST_PAUSE_S:g} s")
        if self._paused is None:
            self._paused = self._pauses.submit(self._pause, pause_s)
        if not wait([self._paused], protocol.LONGEST_PAUSE_S).done:
            return protocol.GOES_ON
        paused, self._paused = self._paused, None
        paused.result()
        return protocol.OVER

    def _pause(self, pause_s: float) -> None:
        with self._accessed() as way:
            way.pause(pause_s)


_ACTS: dict[str, Callable[[_Session, bytes], bytes]] = {
    protocol.READ_REGISTERS: _Session.read_registers,
    protocol.WRITE_REGISTERS: _Session.write_registers,
    protocol.ALLOCATE: _Session.allocate,
    protocol.READ: _Session.read,
    protocol.WRITE: _Session.write,
    protocol.PAUSE: _Session.pause,
}


def _numbers(request: bytes, size: int) -> Any:
    """Read the numbers of 32 bits of a message whose items have `size` bytes."""
    count, rest = divmod(len(request), size)
    if rest or not 1 <= count <= protocol.MOST_REGISTERS:
        raise ValueError(
            f"a message has 1..{protocol.MOST_REGISTERS} registers of {size} bytes, not "
            f"{len(request)} bytes"
        )
    return np.frombuffer(request, "<u4")


def _register(offset: int) -> int:
    if offset % 4 or offset >= 1 << ADDRESS_BITS:
        raise ValueError(f"there is no register at {offset:#x}")
    return offset


class _Owned:
    """A device, and who has it."""

    def __init__(self, device: Served) -> None:
        self.device = device
        self.taken = threading.Lock()
        self.owner = ""


class DeviceAgent(Closing):
    """Serves devices; `close` ends that and takes them from their clients.

    Parameters
    ----------
    devices : sequence of Served
    place : Place
        Where to listen; an address of this host.
    certificate, key : bytes
        The agent's certificate and its key, in PEM.
    token : str
        What a client must know.

    Raises
    ------
    UserError
        If grpcio is not installed, or nothing can listen there.
    """

    def __init__(
        self,
        devices: Sequence[Served],
        place: protocol.Place,
        certificate: bytes,
        key: bytes,
        token: str,
    ) -> None:
        grpc = self._grpc = require("grpc", "an agent")
        self._token = authorization(token).encode()
        self._devices = {device.name: _Owned(device) for device in devices}
        self._sessions: dict[str, _Session] = {}
        workers = 2 * len(devices) + 8
        self._server = grpc.server(
            ThreadPoolExecutor(workers, thread_name_prefix="agent"),
            maximum_concurrent_rpcs=workers,
            options=[
                *protocol.channel_options(),
                ("grpc.so_reuseport", 0),
                ("grpc.server_handshake_timeout_ms", 1000 * HANDSHAKE_LIMIT_S),
                ("grpc.http2.min_ping_interval_without_data_ms", 1000),
            ],
        )
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._call(act))
            for name, act in _ACTS.items()
        }
        handlers[protocol.HOLD] = grpc.unary_stream_rpc_method_handler(self._hold)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(protocol.SERVICE, handlers),)
        )
        try:
            port = self._server.add_secure_port(
                str(place), grpc.ssl_server_credentials([(key, certificate)])
            )
        except RuntimeError:
            port = 0
        if not port:
            raise UserError(
                f"no agent can listen at {place}: something else listens there, or this host has "
                "no such address"
            )
        self._server.start()

    def close(self) -> None:
        """See `Closing`."""
        self._server.stop(0).wait()
        for owned in self._devices.values():  # which the ends of the streams give back
            owned.taken.acquire(timeout=TAKE_LIMIT_S)

    # ------------------------------------------------------------------ calls

    def _hold(self, request: bytes, context: Any) -> Iterator[bytes]:
        """Give a device to a client until its stream ends."""
        try:
            self._admit(context)
            owned = self._asked(request)
            self._take(owned, context)
        except _Refused as refused:
            self._refuse(context, refused)
        name = owned.device.name
        over = threading.Event()
        session = secrets.token_hex(16)
        try:
            if not context.add_callback(over.set):
                return  # the client has gone
            try:
                with owned.device.accesses:
                    way = owned.device.open()
            except Exception as error:
                self._refuse(context, _Refused("ABORTED", self._reason(name, error)))
            self._sessions[session] = _Session(owned.device, way)
            logger.info("%s: taken by %s", name, owned.owner)
            answer = {"session": session, "kind": owned.device.kind, "board": owned.device.board}
            yield json.dumps(answer).encode()
            over.wait()
        finally:
            ended = self._sessions.pop(session, None)
            try:
                if ended is not None:
                    ended.end()
                    logger.info("%s: given back by %s", name, owned.owner)
            finally:
                owned.taken.release()

    def _asked(self, request: bytes) -> _Owned:
        try:
            version, name = protocol.json_message(request, "protocol", "device")
        except ValueError as error:
            raise _Refused("INVALID_ARGUMENT", str(error)) from None
        if version != protocol.PROTOCOL:
            raise _Refused(
                "ABORTED",
                f"the agent has version {protocol.PROTOCOL} of the messages, and the client "
                "another one; install the same fpgapipe on both hosts",
            )
        owned = self._devices.get(name) if isinstance(name, str) else None
        if owned is None:
            raise _Refused("ABORTED", f"it serves {', '.join(self._devices)} and no other device")
        return owned

    def _take(self, owned: _Owned, context: Any) -> None:
        if not owned.taken.acquire(timeout=TAKE_LIMIT_S):
            raise _Refused("ABORTED", f"{owned.device.name} is in use by {owned.owner}")
        since = time.strftime("%H:%M:%S")
        owned.owner = f"the client {_address(context.peer())} since {since}"

    def _call(self, act: Callable[[_Session, bytes], bytes]) -> Callable[[bytes, Any], bytes]:
        def answer(request: bytes, context: Any) -> bytes:
            try:
                self._admit(context)
                return self._act(act, request, context)
            except _Refused as refused:
                self._refuse(context, refused)

        return answer

    def _act(self, act: Callable[[_Session, bytes], bytes], request: bytes, context: Any) -> bytes:
        name = dict(context.invocation_metadata()).get(protocol.SESSION)
        session = self._sessions.get(name) if isinstance(name, str) else None
        if session is None:
            raise _Refused(
                "FAILED_PRECONDITION",
                "the device was given back, as the connection was lost or the agent started anew",
            )
        try:
            return act(session, request)
        except (ValueError, struct.error) as error:
            raise _Refused("INVALID_ARGUMENT", str(error)) from None
        except Exception as error:
            raise _Refused("ABORTED", self._reason(session.device.name, error)) from None

    def _reason(self, name: str, error: Exception) -> str:
        """What the client is told of an error of the device."""
        if isinstance(error, UserError):
            return str(error)
        logger.error("%s: an access failed", name, exc_info=error)
        return f"{name}: an access failed with {type(error).__name__}; the agent's log has more"

    def _admit(self, context: Any) -> None:
        """Refuse a call without the token."""
        found = dict(context.invocation_metadata()).get(protocol.TOKEN, "")
        given = found.encode() if isinstance(found, str) else bytes(found)
        if not hmac.compare_digest(given, self._token):
            logger.warning("refused %s, which has no right token", _address(context.peer()))
            raise _Refused("UNAUTHENTICATED", "the token is missing or wrong")

    def _refuse(self, context: Any, refused: _Refused) -> NoReturn:
        status = getattr(self._grpc.StatusCode, refused.status)
        context.abort(status, str(refused)[: protocol.MOST_TEXT])
        raise AssertionError("abort raises")


def _address(peer: str) -> str:
    """Address of a client without the way in which gRPC writes it."""
    return peer.partition(":")[2].replace("%5B", "[").replace("%5D", "]")
