"""The transport to a device of another host, through the agent that serves it there."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.host.driver.transport import BoardTransport, TransportError
from fpgapipe.host.transports import agent_protocol as protocol
from fpgapipe.host.transports.agent_secrets import authorization, certificates, trusting
from fpgapipe.optional import require

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from fpgapipe.boards.address import Address
    from fpgapipe.boards.schema import Board

REACH_LIMIT_S = 5.0
"""Seconds in which an agent must answer at all."""

OPEN_LIMIT_S = 60.0
"""Seconds in which an agent must have opened a device, which may load a bitstream first."""

CALL_LIMIT_S = 15.0
"""Seconds in which an access to registers must be done; those behind the agent may take ten."""

MEMORY_LIMIT_S = 60.0
"""Seconds in which `MOST_BYTES` of memory must be moved, as over a serial line."""


class AgentTransport(BoardTransport):
    """Access to a device that an agent serves, and that belongs to this client until `close`.

    Parameters
    ----------
    agent : str
        Host and port of the agent.
    device : str
        Name of the device.
    ca : Path
        File of the certificates that are trusted, in PEM; the agent's own if it signed itself.
    token : str
        What the agent's clients must know.
    call_s, memory_s, open_s : float
        Seconds in which a call must be answered: for registers, for memory, and for the first one.

    Attributes
    ----------
    kind, board : str
        Name of the transport behind the agent, and of the device's board.

    Raises
    ------
    UserError
        If grpcio is not installed, or the file has no certificates.
    TransportError
        If the agent cannot be reached, is another one, or does not give the device.
    """

    name = "agent"

    def __init__(
        self,
        agent: str,
        device: str,
        ca: Path,
        token: str,
        *,
        call_s: float = CALL_LIMIT_S,
        memory_s: float = MEMORY_LIMIT_S,
        open_s: float = OPEN_LIMIT_S,
    ) -> None:
        self._grpc = require("grpc", "a device of another host")
        place = protocol.Place.of(agent)
        self._who, self._why = f"the agent at {place}", ""
        self._call_s, self._memory_s = call_s, memory_s
        pem = certificates(ca)
        _check_reach(place, trusting(ca, pem))
        self._channel = self._grpc.secure_channel(
            str(place),
            self._grpc.ssl_channel_credentials(root_certificates=pem.encode()),
            [*protocol.channel_options(), ("grpc.enable_http_proxy", 0)],
        )
        self._methods = {
            name: self._channel.unary_unary(f"/{protocol.SERVICE}/{name}")
            for name in (
                *(protocol.READ_REGISTERS, protocol.WRITE_REGISTERS, protocol.ALLOCATE),
                *(protocol.READ, protocol.WRITE, protocol.PAUSE),
            )
        }
        self._metadata: tuple[tuple[str, str], ...] = ((protocol.TOKEN, authorization(token)),)
        self._stream: Any = None
        try:
            session, self.kind, self.board = self._hold(device, open_s)
        except BaseException:
            self.close()
            raise
        self._metadata = (*self._metadata, (protocol.SESSION, session))

    @classmethod
    def open(cls, address: Address, board: Board, folder: Path) -> AgentTransport:
        """See `BoardTransport`."""
        raise UserError("--backend agent needs the key agent, at which the device is served")

    def _hold(self, device: str, limit_s: float) -> list[str]:
        """Take a device; returns session, kind and board."""
        request = json.dumps({"protocol": protocol.PROTOCOL, "device": device}).encode()
        hold = self._channel.unary_stream(f"/{protocol.SERVICE}/{protocol.HOLD}")
        self._stream = hold(request, metadata=self._metadata)
        late = threading.Event()

        def end() -> None:
            late.set()
            self._stream.cancel()

        timer = threading.Timer(limit_s, end)
        timer.daemon = True
        timer.start()
        try:
            answer = next(self._stream)
            found = protocol.json_message(answer, "session", "kind", "board")
        except self._grpc.RpcError as error:
            if late.is_set():
                raise self._lost(f"did not open {device} in {limit_s:g} s") from None
            raise self._failed(error, limit_s) from None
        except (StopIteration, ValueError):
            raise self._lost("answers otherwise than an agent does") from None
        finally:
            timer.cancel()
        if not all(isinstance(each, str) and each.isascii() for each in found):
            raise self._lost("answers otherwise than an agent does")
        return found

    def close(self) -> None:
        """See `Transport`; the agent closes the device."""
        if self._stream is not None:
            self._stream.cancel()
        self._channel.close()
        self._why = self._why or f"the connection to {self._who[4:]} was closed"

    def read_register(self, offset: int) -> int:
        """See `Transport`."""
        return self.read_registers([offset])[0]

    def write_register(self, offset: int, value: int) -> None:
        """See `Transport`."""
        self.write_registers([(offset, value)])

    def read_registers(self, offsets: Sequence[int]) -> list[int]:
        """See `Transport`."""
        found: list[int] = []
        for at in range(0, len(offsets), protocol.MOST_REGISTERS):
            part = np.array(offsets[at : at + protocol.MOST_REGISTERS], "<u4")
            answer = self._call(protocol.READ_REGISTERS, part.tobytes(), self._call_s)
            found += np.frombuffer(self._sized(answer, part.nbytes), "<u4").tolist()
        return found

    def write_registers(self, values: Sequence[tuple[int, int]]) -> None:
        """See `Transport`."""
        for at in range(0, len(values), protocol.MOST_REGISTERS):
            part = np.array(values[at : at + protocol.MOST_REGISTERS], "<u4")
            self._call(protocol.WRITE_REGISTERS, part.tobytes(), self._call_s)

    def allocate(self, size_bytes: int) -> int:
        """See `Transport`."""
        answer = self._call(protocol.ALLOCATE, protocol.NUMBER.pack(size_bytes), self._memory_s)
        (address,) = protocol.NUMBER.unpack(self._sized(answer, protocol.NUMBER.size))
        return int(address)

    def write(self, address: int, data: NDArray[np.uint8]) -> None:
        """See `Transport`."""
        for at in range(0, data.size, protocol.MOST_BYTES):
            part = (
                protocol.NUMBER.pack(address + at) + data[at : at + protocol.MOST_BYTES].tobytes()
            )
            with self._moving("write", data.size, address, at):
                self._call(protocol.WRITE, part, self._memory_s)

    def read(self, address: int, size_bytes: int) -> NDArray[np.uint8]:
        """See `Transport`."""
        found = np.empty(size_bytes, np.uint8)
        for at in range(0, size_bytes, protocol.MOST_BYTES):
            size = min(protocol.MOST_BYTES, size_bytes - at)
            with self._moving("read", size_bytes, address, at):
                part = self._call(
                    protocol.READ, protocol.SPAN.pack(address + at, size), self._memory_s
                )
                found[at : at + size] = np.frombuffer(self._sized(part, size), np.uint8)
        return found

    def pause(self, pause_s: float) -> None:
        """See `Transport`; the agent waits for the interrupt."""
        pause_s = min(pause_s, protocol.LONGEST_PAUSE_S)
        request = protocol.SECONDS.pack(pause_s)
        while self._call(protocol.PAUSE, request, self._call_s) != protocol.OVER:
            pass

    def _call(self, method: str, request: bytes, limit_s: float) -> bytes:
        if self._why:
            raise TransportError(self._why)
        try:
            answer = self._methods[method](request, timeout=limit_s, metadata=self._metadata)
        except self._grpc.RpcError as error:
            raise self._failed(error, limit_s) from None
        return bytes(answer)

    def _sized(self, answer: bytes, size: int) -> bytes:
        if len(answer) != size:
            raise self._lost(f"answered with {len(answer):,} bytes where {size:,} were asked for")
        return answer

    @contextlib.contextmanager
    def _moving(self, what: str, size: int, address: int, done: int) -> Any:
        """Say in errors how far a transfer has come."""
        try:
            yield
        except TransportError as error:
            raise TransportError(
                f"{what} of {size:,} bytes at {address:#x} failed after {done:,} bytes: {error}"
            ) from None

    def _failed(self, error: Any, limit_s: float) -> TransportError:
        """Return the error of a call: of the device, or of an agent that is of no use any more."""
        code, details = error.code().name, str(error.details())[: protocol.MOST_TEXT]
        if code in ("ABORTED", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"):
            return TransportError(f"{self._who}: {details}")
        if code == "UNAUTHENTICATED":
            return self._lost(
                f"refuses this client: {details}; both sides must have the same token_file"
            )
        if code == "FAILED_PRECONDITION":
            return self._lost(f"no longer has this client: {details}")
        if code == "DEADLINE_EXCEEDED":
            return self._lost(f"did not answer within {limit_s:g} s")
        if code == "UNIMPLEMENTED":
            return self._lost("has no such call; install the same fpgapipe on both hosts")
        return self._lost(
            f"is gone ({details[:200]}); look at whether it runs, and at the network to its host"
        )

    def _lost(self, why: str) -> TransportError:
        """Return the error after which each later call fails at once."""
        self._why = f"{self._who} {why}"
        return TransportError(self._why)


def _check_reach(place: protocol.Place, context: ssl.SSLContext) -> None:
    """Check that an agent listens at a place and has a certificate that is trusted.

    gRPC says all of that in one error; this names it.

    Raises
    ------
    TransportError
        If it does not.
    """
    who = f"the agent at {place}"
    context.set_alpn_protocols(["h2"])
    other = f"{who}: something else than an agent listens there"
    try:
        with (
            socket.create_connection((place.host, place.port), REACH_LIMIT_S) as plain,
            context.wrap_socket(plain, server_hostname=place.host) as secure,
        ):
            if secure.selected_alpn_protocol() != "h2":
                raise TransportError(other)
    except ssl.SSLCertVerificationError as error:
        raise TransportError(
            f"{who} is not trusted: {error.verify_message}; 'ca' must name the certificate that it "
            "was started with or one that signed it, and its names must have the host of 'agent'"
        ) from None
    except (ssl.SSLError, ConnectionResetError) as error:
        raise TransportError(f"{other} ({error.strerror or error})") from None
    except TimeoutError:
        raise TransportError(
            f"{who} does not answer in {REACH_LIMIT_S:g} s; look at its host and at the network"
        ) from None
    except ConnectionRefusedError:
        raise TransportError(
            f"{who} does not run: nothing listens there; 'fpgapipe agent {place}' on its host "
            "starts it"
        ) from None
    except OSError as error:
        raise TransportError(f"{who} cannot be reached: {error.strerror or error}") from None
