"""Files of simulations that stand in the middle of a step.

A simulator takes the bytes of its state as they are, so a file that somebody else wrote could make
it do anything. A file is therefore signed with a key that this user's cache holds, and only files
with that signature are read. It consists of a line that identifies the format, a line with the
HMAC-SHA256 of all that follows, a line of JSON, and the states and pages one after the other.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import os
import secrets
from typing import TYPE_CHECKING, Any

import numpy as np

from fpgapipe.cache import cache_dir, lock
from fpgapipe.errors import FileError, UserError
from fpgapipe.files import open_file, read_bytes, write_whole
from fpgapipe.host.backends.snapshot import PAGE_BYTES, Pages, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from io import BufferedReader
    from pathlib import Path

MAGIC = b"fpgapipe-snapshot 1\n"
MAX_BYTES = 1 << 37
"""Most bytes of a file; memories of several boards are smaller."""

_CHUNK_BYTES = 1 << 24
_KEY, _KEY_BYTES = "snapshot.key", 32


class SnapshotError(UserError):
    """A snapshot cannot be used; the message says why."""


def _key() -> bytes:
    """The key with which this user signs snapshots; it is made when it is needed first."""
    path = cache_dir() / _KEY
    with lock(cache_dir() / "locks" / _KEY):
        if not path.exists():
            part = path.with_name(f"{_KEY}.part")
            part.unlink(missing_ok=True)
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
            part.replace(path)
        return read_bytes(path, _KEY_BYTES)


def write_snapshot(path: Path, snapshot: Snapshot, about: Mapping[str, Any]) -> None:
    """Write a snapshot; even after a crash, the file is either complete or not there.

    Parameters
    ----------
    path : Path
    snapshot : Snapshot
    about : mapping
        Values of JSON that `read_snapshot` gives back.

    Raises
    ------
    OSError
        If the file cannot be written; nothing is left of it then.
    """
    head = {
        "about": dict(about),
        "designs": snapshot.designs,
        "cycle": snapshot.cycle,
        "begin": snapshot.begin,
        "runs": snapshot.runs,
        "states": [len(each) for each in snapshot.states],
        "pages": [len(each.numbers) for each in snapshot.memories],
        "model_states": [len(each) for each in snapshot.model_states],
        "model_pages": [len(each.numbers) for each in snapshot.model_memories],
    }
    line = json.dumps(head).encode() + b"\n"
    code = hmac.new(_key(), line, hashlib.sha256)
    for piece in _pieces(snapshot):
        code.update(piece)
    start = [MAGIC, code.hexdigest().encode() + b"\n", line]
    write_whole(path, itertools.chain(start, _pieces(snapshot)))


def _pieces(snapshot: Snapshot) -> Iterator[bytes]:
    yield from (*snapshot.states, *snapshot.model_states)
    for pages in (*snapshot.memories, *snapshot.model_memories):
        yield pages.numbers.tobytes()
        yield pages.contents.tobytes()


def read_snapshot(path: Path) -> tuple[Snapshot, dict[str, Any]]:
    """Read a snapshot that this user has written, and what was said about it.

    Raises
    ------
    SnapshotError
        If the file is no snapshot, is damaged, or has another signature.
    """
    try:
        with open_file(path, MAX_BYTES) as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise SnapshotError(f"{path} is no snapshot of this version")
            written, begin = file.readline(80), file.tell()
            code = hmac.new(_key(), digestmod=hashlib.sha256)
            while chunk := file.read(_CHUNK_BYTES):
                code.update(chunk)
            if not hmac.compare_digest(code.hexdigest().encode() + b"\n", written):
                raise SnapshotError(f"{path} is damaged, or was not written by you on this machine")
            # From here on the contents are those that `write_snapshot` wrote.
            file.seek(begin)
            head = json.loads(file.readline())
            states, model_states = (
                tuple(file.read(size) for size in head[name]) for name in ("states", "model_states")
            )
            memories, model_memories = (
                tuple(_read_pages(file, count) for count in head[name])
                for name in ("pages", "model_pages")
            )
    except FileError as error:
        raise SnapshotError(str(error)) from None
    except OSError as error:
        raise SnapshotError(f"{path}: cannot be read: {error.strerror}") from None
    snapshot = Snapshot(
        tuple(head["designs"]),
        head["cycle"],
        head["begin"],
        head["runs"],
        states,
        memories,
        model_states,
        model_memories,
    )
    return snapshot, head["about"]


def _read_pages(file: BufferedReader, count: int) -> Pages:
    numbers = np.frombuffer(file.read(8 * count), np.int64)
    contents = np.frombuffer(file.read(PAGE_BYTES * count), np.uint8)
    return Pages(numbers, contents.reshape(count, PAGE_BYTES))
