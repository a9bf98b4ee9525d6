"""Things that are no files to read, each under a name: what every argument is tried with."""

import os
import socket
from pathlib import Path

SPARSE_BYTES = 10 << 30


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _folder(path: Path) -> None:
    path.mkdir()


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _unreadable(path: Path) -> None:
    path.write_bytes(b"secret")
    path.chmod(0)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(SPARSE_BYTES)


def _binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 16)


def _socket(path: Path) -> None:
    here = os.open(".", os.O_RDONLY)  # the name of a socket has at most 108 bytes
    try:
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)
        os.close(here)


def _absent(path: Path) -> None:
    """Leave it so."""


ODD = {
    "fifo": _fifo,
    "device": _device,
    "folder": _folder,
    "loop": _loop,
    "unreadable": _unreadable,
    "empty": _empty,
    "sparse": _sparse,
    "binary": _binary,
    "socket": _socket,
    "absent": _absent,
}
"""Function that makes each, under a name that is free; root can read the unreadable one."""
