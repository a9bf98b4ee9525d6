"""The cache of compiled designs: each entry is a folder named by the digest of its ingredients.

An entry appears whole or not at all, and it is checked when it is used. When the cache is full,
the entries that were used least recently are removed. Any number of processes may use the cache at
the same time.
"""

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fpgapipe.errors import UserError

CACHE_LIMIT_BYTES = 2 << 30
"""Size limit of the cache, bytes; above it, the least recently used entries are removed."""

STALE_S = 24 * 3600
"""Age, in seconds, at which the temporary folder of a killed compilation is removed."""


def cache_dir() -> Path:
    """Return the folder of the cache, and create it where it does not exist yet.

    It is ``$FPGAPIPE_CACHE`` if that is set, else ``$XDG_CACHE_HOME/fpgapipe``, else
    ``~/.cache/fpgapipe``.

    Raises
    ------
    UserError
        If the user has no home folder for it, or it cannot be written.
    """
    remedy = "set FPGAPIPE_CACHE to a folder that can be written"
    base = os.environ.get("XDG_CACHE_HOME", "")
    if chosen := os.environ.get("FPGAPIPE_CACHE"):
        folder = Path(chosen).expanduser().absolute()
    elif Path(base).is_absolute():
        folder = Path(base, "fpgapipe")
    else:
        try:
            folder = Path.home() / ".cache" / "fpgapipe"
        except RuntimeError:
            raise UserError(f"there is no home folder to keep simulators in; {remedy}") from None
    try:
        for part in ("simulators", "runtime", "building", "locks", "logs"):
            (folder / part).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; {remedy}") from None
    if not os.access(folder / "building", os.W_OK | os.X_OK):
        raise UserError(f"cannot write {folder}: Permission denied; {remedy}")
    return folder


@functools.cache
def _file_digest(path: str, size_bytes: int, mtime_ns: int) -> str:
    """Digest of a file; a process computes it again only if the file's size or time changes."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    status = path.stat()
    return _file_digest(str(path), status.st_size, status.st_mtime_ns)


def key_of(ingredients: Mapping[str, Any]) -> str:
    """Name of the cache entry that has these ingredients; they must be values of JSON."""
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()[:32]


def is_whole(entry: Path) -> bool:
    """Whether a cache entry exists and is undamaged; if so, it is marked as used now."""
    try:
        digests = json.loads((entry / "entry.json").read_text())["digests"]
        if not all(digest_of(entry / name) == digest for name, digest in digests.items()):
            return False
        os.utime(entry)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False
    return True


def store(files: Sequence[Path], entry: Path, ingredients: Mapping[str, Any]) -> None:
    """Copy files into a new cache entry, which appears whole or not at all."""
    new = Path(tempfile.mkdtemp(dir=entry.parent.parent / "building"))
    for path in files:
        shutil.copy(path, new)
    note = {"digests": {path.name: digest_of(path) for path in files}, "made_of": ingredients}
    (new / "entry.json").write_text(json.dumps(note, indent=2))
    if entry.exists() and not is_whole(entry):
        shutil.rmtree(entry, ignore_errors=True)
    try:
        new.rename(entry)
    except OSError:
        # Another process has made the entry first.
        shutil.rmtree(new, ignore_errors=True)
        if not is_whole(entry):
            raise


def prune(cache: Path, spared: Path) -> None:
    """Remove old leftovers, and the least recently used entries while the cache is too large."""
    now = time.time()
    for folder in ("building", "logs", "locks"):
        for path in (cache / folder).iterdir():
            with contextlib.suppress(OSError):
                if now - path.stat().st_mtime > STALE_S:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
    sizes: dict[Path, int] = {}
    used: dict[Path, float] = {}
    for entry in (*(cache / "simulators").iterdir(), *(cache / "runtime").iterdir()):
        with contextlib.suppress(OSError):
            sizes[entry] = sum(path.stat().st_size for path in entry.iterdir())
            used[entry] = entry.stat().st_mtime
    total = sum(sizes.values())
    for entry in sorted(used, key=used.__getitem__):
        if total <= CACHE_LIMIT_BYTES:
            break
        if entry != spared:
            shutil.rmtree(entry, ignore_errors=True)
            total -= sizes[entry]


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Let one process at a time build a design; the kernel frees the lock of a killed process."""
    with path.open("w") as file:
        # On a file system without locks, two processes may do the same work. Either result is
        # right, because an entry appears when a complete folder is renamed.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def building(cache: Path) -> Iterator[Path]:
    """Give a temporary folder whose path has no spaces, since make cannot work with spaces."""
    parents = [cache / "building", Path(tempfile.gettempdir()).resolve()]
    parent = next((parent for parent in parents if not has_space(parent)), None)
    if parent is None:
        raise UserError(
            f"make cannot work in a folder with a space in its path, as in {parents[0]}; set "
            "FPGAPIPE_CACHE or TMPDIR to one without"
        )
    with tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def has_space(path: Path) -> bool:
    """Whether a path has white space, which make reads as the end of a name."""
    return re.search(r"\s", str(path)) is not None
