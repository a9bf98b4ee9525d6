"""The messages between a device agent and its clients.

They go over gRPC, and their bytes are packed by `struct`, little-endian; nothing is unpickled. The
service `SERVICE` has these methods:

================== ===================================== ==========================================
method             request                               answer
================== ===================================== ==========================================
``Hold``           JSON: ``protocol``, ``device``        a stream of one JSON message: ``session``,
                                                         ``kind``, ``board``; it then stays open
``ReadRegisters``  offsets, `OFFSET` each                values, `OFFSET` each
``WriteRegisters`` pairs of offset and value, `PAIR`     nothing
``Allocate``       number of bytes, `NUMBER`             address, `NUMBER`
``Read``           address and number of bytes, `SPAN`   the bytes
``Write``          address, `NUMBER`, and the bytes      nothing
``Pause``          seconds, `SECONDS`                    `OVER`, or `GOES_ON`: ask again
================== ===================================== ==========================================

Each call has the token in its metadata `TOKEN`, and each but ``Hold`` the session in `SESSION`. A
device belongs to the client for as long as the stream of ``Hold`` is open, and to nobody else.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from fpgapipe.errors import UserError
from fpgapipe.files import parse_json

SERVICE = "fpgapipe.DeviceAgent"
HOLD = "Hold"
READ_REGISTERS, WRITE_REGISTERS = "ReadRegisters", "WriteRegisters"
ALLOCATE, READ, WRITE, PAUSE = "Allocate", "Read", "Write", "Pause"

PROTOCOL = 1
"""Version of the messages."""

TOKEN, SESSION = "authorization", "fpgapipe-session"
"""Names of the metadata."""

OFFSET, PAIR = struct.Struct("<I"), struct.Struct("<II")
NUMBER, SPAN, SECONDS = struct.Struct("<Q"), struct.Struct("<QI"), struct.Struct("<d")

MOST_BYTES = 1 << 18
"""Most bytes of memory of one message; a slow serial line moves as many within a time limit."""

MOST_REGISTERS = 1024
"""Most registers of one message."""

MOST_MESSAGE = MOST_BYTES + 4096
"""Most bytes of a message; gRPC refuses longer ones."""

MOST_TEXT = 4000
"""Most characters of an error that goes to the client."""

LONGEST_PAUSE_S = 1.0
"""Longest pause, and longest time in which the agent answers whether it is over, seconds.

Devices that are models compute in a pause, which may take them much longer."""

OVER, GOES_ON = b"\1", b"\0"
"""Answers to a pause."""

KEEPALIVE_S, KEEPALIVE_LIMIT_S = 5.0, 5.0
"""Seconds after which a silent connection is tried, and in which an answer must come."""


def channel_options() -> list[tuple[str, int]]:
    """Options of gRPC that both sides have."""
    return [
        ("grpc.max_receive_message_length", MOST_MESSAGE),
        ("grpc.max_send_message_length", MOST_MESSAGE),
        ("grpc.max_metadata_size", 16 * 1024),
        ("grpc.keepalive_time_ms", round(1e3 * KEEPALIVE_S)),
        ("grpc.keepalive_timeout_ms", round(1e3 * KEEPALIVE_LIMIT_S)),
        ("grpc.http2.ping_timeout_ms", round(1e3 * KEEPALIVE_LIMIT_S)),  # else a minute
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.enable_retries", 0),
    ]


@dataclass(frozen=True)
class Place:
    """Host and port of an agent."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Place:
        """Read ``host:port``; an IPv6 address is in brackets.

        Raises
        ------
        UserError
            If it is something else.
        """
        host, _, port = text.rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        good = port.isascii() and port.isdecimal() and len(port) <= 5 and 1 <= int(port) < 1 << 16
        if not host or not good:
            raise UserError(
                f"an agent must be named by host and port (1..65535), as lab-a:7000, not {text}"
            )
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def json_message(data: bytes, *keys: str) -> list[Any]:
    """Return the values of some keys of a message in JSON.

    Raises
    ------
    ValueError
        If it is something else, or lacks a key.
    """
    found = parse_json(data.decode())
    if not isinstance(found, dict) or not set(keys) <= set(found):
        raise ValueError(f"a message must have {', '.join(keys)}")
    return [found[key] for key in keys]
