"""Answers that are kept in files for later commands; any number of processes may use them at once.

A file is named by the digest of its question and of the sources that determine the answer, so that
no change of fpgapipe, or of a package that extends it, leaves an old answer in use. It appears
whole or not at all. One that is damaged is made again. Where the cache folder cannot be written,
answers are not kept.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpgapipe.cache import cache_dir, key_of
from fpgapipe.errors import UserError
from fpgapipe.files import write_whole
from fpgapipe.plugins import digest_of_others

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST_BYTES = 256 << 20
"""Bytes of all answers of a kind, above which the least recently used ones are removed."""

SWITCH = "FPGAPIPE_ANSWERS"
"""Variable of the environment that, set to 0, lets nothing be kept or read.

Kinds of questions with commas between them (``programs``) let only their answers be kept and read.
"""


def remembered(
    kind: str, sources: tuple[str, ...], question: Mapping[str, Any], find: Callable[[], Any]
) -> Any:
    """The answer to a question, from a file if it is there.

    Parameters
    ----------
    kind : str
        Kind of the question, the name of a folder of the cache.
    sources : tuple of str
        Names of the packages that determine the answer.
    question : mapping
        Everything else that the answer depends on, as values of JSON.
    find : callable
        Returns the answer, a value of JSON. None is not kept.
    """
    path = _path(kind, sources, question)
    if path is None:
        return _plain(find())
    found = _read(path)
    if found is None:
        found = _plain(find())
        if found is not None:
            _write(path, found)
    return found


def _plain(value: Any) -> Any:
    """The value as it comes back from a file, so that both ways give the same."""
    return json.loads(json.dumps(value))


def _path(kind: str, sources: tuple[str, ...], question: Mapping[str, Any]) -> Path | None:
    """File of an answer; None if answers are not kept."""
    kept = os.environ.get(SWITCH, "1")
    if kept == "0" or (kept != "1" and kind not in kept.split(",")):
        return None
    try:
        folder = cache_dir() / kind
        folder.mkdir(exist_ok=True)
    except (OSError, UserError):
        return None
    made_by = {"sources": sources_digest(sources), "others": digest_of_others()}
    return folder / f"{key_of({'question': question, **made_by})}.json"


def _read(path: Path) -> Any:
    """The answer in a file; None if there is none, or it is damaged."""
    try:
        digest, _, text = path.read_bytes().partition(b"\n")
        if hashlib.sha256(text).hexdigest().encode() != digest:
            return None
        os.utime(path)
        return json.loads(text)
    except (OSError, ValueError):
        return None


def _write(path: Path, value: Any) -> None:
    text = json.dumps(value).encode()
    with contextlib.suppress(OSError):
        write_whole(path, [hashlib.sha256(text).hexdigest().encode(), b"\n", text])
        _prune(path.parent)


def _prune(folder: Path) -> None:
    """Remove what was used least recently, as far as there is too much."""
    files = []
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):
            status = entry.stat()
            files.append((status.st_mtime_ns, status.st_size, entry.path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= MOST_BYTES:
            break
        with contextlib.suppress(OSError):
            Path(path).unlink()
        total -= size


@functools.cache
def sources_digest(packages: tuple[str, ...]) -> str:
    """Digest of all sources of some packages."""
    digest = hashlib.sha256()
    for package in packages:
        for path in source_files(package):
            digest.update(f"{package} {path.name}\n".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def source_files(package: str) -> list[Path]:
    """Files of a package and of all packages in it, in the order of their names."""
    (root,) = importlib.import_module(f"fpgapipe.{package}").__path__
    return sorted(Path(root).rglob("*.py"))
