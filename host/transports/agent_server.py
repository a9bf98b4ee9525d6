"""The device agent: serves the devices of its host to one client each.

Every call needs the token, which is looked at before the call's message is received and before the
call counts. What a client asks for is checked before the device sees it: offsets of registers, and
that memory was reserved by this very client.

All calls come to one thread, which never waits. A session has a thread of its own for the accesses
to its device, so that no other client can take its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import json
import logging
import math
import os
import resource
import secrets
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from fpgapipe.closing import Closing
from fpgapipe.errors import UserError
from fpgapipe.host.driver.buffers import Buffers
from fpgapipe.host.driver.transport import TransportError
from fpgapipe.host.transports import agent_protocol as protocol
from fpgapipe.host.transports.agent_secrets import authorization
from fpgapipe.host.transports.agent_strangers import Strangers
from fpgapipe.hw.hls_models.model.registers import ADDRESS_BITS
from fpgapipe.optional import require

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from fpgapipe.host.driver.transport import Transport

    _Act = Callable[["_Session", bytes], Awaitable[bytes]]

TAKE_LIMIT_S = 2.0
"""Seconds that a client waits for a device whose last client has just gone."""

MOST_WAITING = 8
"""Most clients that wait for one device; a further one is told at once whose it is."""

HANDSHAKE_LIMIT_S = 10
"""Seconds in which a connection must have its TLS, and in which one without calls is ended."""

MOST_CONNECTIONS = 4096
"""Most connections at a time, of strangers as well."""

OTHER_FILES = 256
"""Open files of the process that connections leave to devices and logs."""

MOST_CALLS = 32
"""Most calls of a session that wait for its device."""

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


def let_open_files() -> None:
    """Let this process open as many files as all connections need, where the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Refused(Exception):
    """A call that is answered by an error: a gRPC status by name, and a sentence."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Session:
    """A client's possession of a device; used by the thread of the calls, but for accesses.

    Its accesses are done one after the other by a thread of its own.
    """

    def __init__(self, device: Served) -> None:
        self.device = device
        self._way: Transport | None = None
        self._memory: Buffers[None] = Buffers()
        self._is_over = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"agent {device.name}")
        self._num_calls = 0
        self._paused: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the device was opened."""
        return self._way is not None

    async def open(self) -> None:
        """Open the device."""
        await self._do(self._open)

    def _open(self) -> None:
        with self.device.accesses:
            self._way = self.device.open()

    def end(self, on_end: Callable[[], object]) -> None:
        """Close the device, once no access is under way, and call a function then."""
        self._thread.submit(self._end).add_done_callback(lambda _: on_end())
        self._thread.shutdown(wait=False)

    def _end(self) -> None:
        with self.device.accesses:
            self._is_over = True
            if self._way is not None:
                try:
                    self.device.close(self._way)
                except Exception as error:
                    logger.error("%s: it cannot be closed", self.device.name, exc_info=error)

    async def call(self, act: Callable[[_Session, bytes], bytes], request: bytes) -> bytes:
        """Do an access; it is done even if its client has gone, as it then counts until its end."""
        answer: bytes = await self._do(functools.partial(act, self, request))
        return answer

    async def _do(self, act: Callable[[], Any]) -> Any:
        if self._num_calls >= MOST_CALLS:
            raise _Refused(
                "RESOURCE_EXHAUSTED",
                f"{self.device.name} has {MOST_CALLS} calls of this client to do already",
            )
        self._num_calls += 1
        done = asyncio.wrap_future(self._thread.submit(act))
        done.add_done_callback(self._count_down)
        return await asyncio.shield(done)

    def _count_down(self, done: asyncio.Future[Any]) -> None:
        self._num_calls -= 1
        if not done.cancelled():
            done.exception()  # its client may have gone, and nobody else asks

    @contextlib.contextmanager
    def _accessed(self) -> Iterator[Transport]:
        with self.device.accesses:
            if self._is_over or self._way is None:
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

    async def pause(self, request: bytes) -> bytes:
        """Wait for the one pause that is under way, or begin one; other calls come after it."""
        (pause_s,) = protocol.SECONDS.unpack(request)
        if not (math.isfinite(pause_s) and 0 <= pause_s <= protocol.LONGEST_PAUSE_S):
            raise ValueError(f"a pause must be 0..{protocol.LONGEST_PAUSE_S:g} s")
        if self._paused is None:
            self._paused = asyncio.ensure_future(self._do(functools.partial(self._pause, pause_s)))
            self._paused.add_done_callback(lambda done: done.cancelled() or done.exception())
        paused = self._paused
        done, _ = await asyncio.wait({paused}, timeout=protocol.LONGEST_PAUSE_S)
        if not done:
            return protocol.GOES_ON
        if self._paused is paused:  # of several calls, the first one
            self._paused = None
        paused.result()
        return protocol.OVER

    def _pause(self, pause_s: float) -> None:
        with self._accessed() as way:
            way.pause(pause_s)


def _access(act: Callable[[_Session, bytes], bytes]) -> _Act:
    return lambda session, request: session.call(act, request)


_ACTS: dict[str, _Act] = {
    protocol.READ_REGISTERS: _access(_Session.read_registers),
    protocol.WRITE_REGISTERS: _access(_Session.write_registers),
    protocol.ALLOCATE: _access(_Session.allocate),
    protocol.READ: _access(_Session.read),
    protocol.WRITE: _access(_Session.write),
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
        self.taken = asyncio.Lock()
        self.owner = ""
        self.num_waiting = 0

    async def take(self, client: str) -> None:
        """Take the device for a client, or refuse that."""
        if self.num_waiting < MOST_WAITING:
            self.num_waiting += 1
            try:
                await asyncio.wait_for(self.taken.acquire(), TAKE_LIMIT_S)
            except TimeoutError:
                pass
            else:
                self.owner = f"the client {client} since {time.strftime('%H:%M:%S')}"
                return
            finally:
                self.num_waiting -= 1
        raise _Refused("ABORTED", f"{self.device.name} is in use by {self.owner}")


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
        self._grpc = require("grpc", "an agent")
        self._token = authorization(token).encode()
        self._strangers = Strangers()
        self._sessions: dict[str, _Session] = {}
        self._loop = _loop_of(os.getpid())
        begun = self._begin(devices, place, certificate, key)
        asyncio.run_coroutine_threadsafe(begun, self._loop).result()

    async def _begin(
        self, devices: Sequence[Served], place: protocol.Place, certificate: bytes, key: bytes
    ) -> None:
        grpc = self._grpc
        self._devices = {device.name: _Owned(device) for device in devices}
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = MOST_CONNECTIONS
        if soft != resource.RLIM_INFINITY:
            most = min(most, max(soft - OTHER_FILES, 64))
        self._server = grpc.aio.server(
            options=[
                *protocol.channel_options(),
                ("grpc.so_reuseport", 0),
                ("grpc.server_handshake_timeout_ms", 1000 * HANDSHAKE_LIMIT_S),
                ("grpc.max_connection_idle_ms", 1000 * HANDSHAKE_LIMIT_S),
                ("grpc.max_allowed_incoming_connections", most),
                ("grpc.max_concurrent_streams", MOST_CALLS + 2 * len(devices)),
                ("grpc.http2.min_ping_interval_without_data_ms", 1000),
            ],
        )
        known = {
            name: grpc.unary_unary_rpc_method_handler(self._call(act))
            for name, act in _ACTS.items()
        }
        known[protocol.HOLD] = grpc.unary_stream_rpc_method_handler(self._hold)
        handlers = {f"/{protocol.SERVICE}/{name}": handler for name, handler in known.items()}
        # It reads no message, so that none is received.
        refusal = grpc.stream_stream_rpc_method_handler(self._refuse_stranger)
        self._server.add_generic_rpc_handlers((_Front(self._is_known, handlers, refusal),))
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
        await self._server.start()

    def close(self) -> None:
        """See `Closing`."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()

    async def _end(self) -> None:
        await self._server.stop(0)
        for owned in self._devices.values():  # which the ends of the streams give back
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(owned.taken.acquire(), TAKE_LIMIT_S)

    # ------------------------------------------------------------------ calls

    async def _hold(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """Give a device to a client until its stream ends."""
        try:
            owned = self._asked(request)
            await owned.take(_address(context.peer()))
        except _Refused as refused:
            await self._refuse(context, refused)
        device = owned.device
        name, session = secrets.token_hex(16), _Session(device)

        def given_back() -> None:
            if session.is_open:
                logger.info("%s: given back by %s", device.name, owned.owner)
            self._loop.call_soon_threadsafe(owned.taken.release)

        try:
            try:
                await session.open()
            except Exception as error:
                await self._refuse(context, _Refused("ABORTED", self._reason(device.name, error)))
            self._sessions[name] = session
            logger.info("%s: taken by %s", device.name, owned.owner)
            answer = {"session": name, "kind": device.kind, "board": device.board}
            yield json.dumps(answer).encode()
            await asyncio.Event().wait()  # it is cancelled when the client has gone
        finally:
            self._sessions.pop(name, None)
            session.end(given_back)

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

    def _call(self, act: _Act) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def answer(request: bytes, context: Any) -> bytes:
            try:
                return await self._act(act, request, context)
            except _Refused as refused:
                await self._refuse(context, refused)

        return answer

    async def _act(self, act: _Act, request: bytes, context: Any) -> bytes:
        name = dict(context.invocation_metadata()).get(protocol.SESSION)
        session = self._sessions.get(name) if isinstance(name, str) else None
        if session is None:
            raise _Refused(
                "FAILED_PRECONDITION",
                "the device was given back, as the connection was lost or the agent started anew",
            )
        try:
            return await act(session, request)
        except _Refused:
            raise
        except (ValueError, struct.error) as error:
            raise _Refused("INVALID_ARGUMENT", str(error)) from None
        except Exception as error:
            raise _Refused("ABORTED", self._reason(session.device.name, error)) from None

    def _reason(self, name: str, error: Exception) -> str:
        """Message to the client about an error of the device."""
        if isinstance(error, UserError):
            return str(error)
        logger.error("%s: an access failed", name, exc_info=error)
        return f"{name}: an access failed with {type(error).__name__}; the agent's log has more"

    def _is_known(self, metadata: Any) -> bool:
        """Whether a call has the token."""
        found = dict(metadata or ()).get(protocol.TOKEN, "")
        given = found.encode() if isinstance(found, str) else bytes(found)
        return hmac.compare_digest(given, self._token)

    async def _refuse_stranger(self, requests: Any, context: Any) -> None:
        """Refuse a call without the token, the later the more of them its peer has made."""
        await self._strangers.refused(_address(context.peer()))
        await self._refuse(context, _Refused("UNAUTHENTICATED", "the token is missing or wrong"))

    async def _refuse(self, context: Any, refused: _Refused) -> NoReturn:
        status = getattr(self._grpc.StatusCode, refused.status)
        await context.abort(status, str(refused)[: protocol.MOST_TEXT])
        raise AssertionError("abort raises")


@dataclass(frozen=True)
class _Front:
    """Says for each call of any name what answers it, before its message is received.

    Attributes
    ----------
    is_known : callable
        Function that says of a call's metadata whether they have the token.
    known : dict
        What answers the calls of whoever has it, by method.
    refusal
        What answers all others.
    """

    is_known: Callable[[Any], bool]
    known: dict[str, Any]
    refusal: Any

    def service(self, call: Any) -> Any:
        """See `grpc.GenericRpcHandler`; None says that there is no such method."""
        if not self.is_known(call.invocation_metadata):
            return self.refusal
        return self.known.get(call.method)


@functools.lru_cache(maxsize=1)
def _loop_of(process: int) -> asyncio.AbstractEventLoop:
    """Return the loop of all agents of a process, which a thread runs from now on.

    gRPC has one queue of events for all loops of a process, and several loops would wake each other
    in vain.
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="agent", daemon=True).start()
    return loop


def _address(peer: str) -> str:
    """Address of a client without the way in which gRPC writes it."""
    return peer.partition(":")[2].replace("%5B", "[").replace("%5D", "]")
