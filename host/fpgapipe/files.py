"""Safe reading and writing of files that a user names, or that lie in a user's folder.

All parts of fpgapipe open such files here. For reading, only an ordinary file of a bounded size is
opened: a pipe may never deliver anything, a device may never end, and a sparse file of ten
gigabytes takes no room on the disk. For writing, a file appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpgapipe.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from io import BufferedReader

MAX_JSON_DIGITS = 400
"""Most digits of a whole number in JSON: no quantity has more, and Python's limit is 4,300."""

STALE_S = 3600.0
"""Age, in seconds, after which no process uses a temporary file any more.

Only for file systems that have no locks.
"""

_PART = re.compile(r"\..*\.[0-9a-f]{8}\.part", re.DOTALL)
_MOST_NAME = 60
"""Most characters of a file's name that go into the name of its temporary file.

A name may have at most 255 bytes.
"""

_BEFORE = "before"
"""Name, in a scratch folder, of the folder that is being replaced."""

_KINDS = (
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)


def size_text(size_bytes: int) -> str:
    """Write a size as ``64 MiB``: whole numbers without decimals, others with three digits."""
    for unit, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes >= 1 << unit:
            return f"{size_bytes / (1 << unit):.3g} {name}"
    return f"{size_bytes} bytes"


# ---------------------------------------------------------------------- reading


def open_file(path: Path, limit_bytes: int) -> BufferedReader:
    """Open an ordinary file for reading; the result is a context manager, as that of `open`.

    This never blocks: only an ordinary file is opened, and if something else takes its place
    meanwhile, that is noticed before anything is read.

    Parameters
    ----------
    path : Path
    limit_bytes : int
        A larger file is refused. The file may still grow afterwards, so the caller must also read
        a bounded number of bytes, as `read_bytes` does.

    Raises
    ------
    FileError
        If there is no such file, it cannot be read, it is a folder, pipe, socket or device, or it
        is too large.
    """
    try:
        _refuse_kind(path, path.stat())  # checked first, because opening a tape rewinds it
        file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 - the caller closes it
    except (OSError, ValueError) as error:
        raise FileError(path, [_why(error)]) from None
    try:
        status = os.fstat(file.fileno())
        _refuse_kind(path, status)
        if status.st_size > limit_bytes:
            raise _too_large(path, limit_bytes, status.st_size)
    except BaseException:
        file.close()
        raise
    return file


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def read_bytes(path: Path, limit_bytes: int) -> bytes:
    """Read a file of at most `limit_bytes`.

    Raises
    ------
    FileError
        In the same cases as `open_file`.
    """
    with open_file(path, limit_bytes) as file:
        try:
            data = file.read(limit_bytes + 1)
        except OSError as error:
            raise FileError(path, [_why(error)]) from None
    if len(data) > limit_bytes:
        raise _too_large(path, limit_bytes, len(data))
    return data


def read_text(path: Path, limit_bytes: int) -> str:
    """Read a UTF-8 file of at most `limit_bytes`; a byte order mark is left out.

    Raises
    ------
    FileError
        In the same cases as `open_file`, and if the file is not UTF-8 text.
    """
    data = read_bytes(path, limit_bytes)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        raise FileError(path, [f"line {line}: must be UTF-8 text, not byte {byte:#04x}"]) from None


def read_json(path: Path, limit_bytes: int) -> Any:
    """Read a file of JSON of at most `limit_bytes`.

    Raises
    ------
    FileError
        In the same cases as `read_text`, and if the file is not JSON, is nested too deeply, or has
        a number that is not finite or a whole number of more than `MAX_JSON_DIGITS` digits.
    """
    text = read_text(path, limit_bytes)
    try:
        return parse_json(text)
    except ValueError as error:
        raise FileError(path, [f"is no JSON: {error}"]) from None


def parse_json(text: str | bytes) -> Any:
    """Parse JSON as the standard defines it: without ``NaN`` and ``Infinity``.

    Raises
    ------
    ValueError
        If it is not JSON, is nested too deeply, or has a number that is not finite or a whole
        number of more than `MAX_JSON_DIGITS` digits.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_int=_whole)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")


def _whole(digits: str) -> int:
    if len(digits) > MAX_JSON_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits is too long")
    return int(digits)


def list_folder(path: Path) -> list[Path]:
    """Paths of all that lies in a folder, sorted by name.

    Raises
    ------
    FileError
        If it is no folder, or cannot be read.
    """
    try:
        return sorted(path.iterdir())
    except (OSError, ValueError) as error:
        raise FileError(path, [_why(error)]) from None


def is_folder(path: Path) -> bool:
    """Whether a path leads to a folder; false if it leads nowhere or cannot be followed."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _why(error: OSError | ValueError) -> str:
    """Fault of a path: the rest of a sentence that begins with the path."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return f"cannot be read: {error}"  # a ValueError, for a null character in the path


def _refuse_kind(path: Path, status: os.stat_result) -> None:
    if kind := _kind(status):
        raise FileError(path, [kind])


def _kind(status: os.stat_result) -> str:
    """Fault of the kind of a file; empty for an ordinary file."""
    if stat.S_ISREG(status.st_mode):
        return ""
    if stat.S_ISDIR(status.st_mode):
        return "is a folder, not a file"
    name = next((name for test, name in _KINDS if test(status.st_mode)), "thing of another kind")
    return f"is no ordinary file but a {name}; name a file on a disk"


def _too_large(path: Path, limit_bytes: int, size_bytes: int) -> FileError:
    limit, size = size_text(limit_bytes), size_text(size_bytes)
    # A size just above the limit has the same rounded text as the limit.
    size = f"{size_bytes:,} bytes" if size == limit else size
    return FileError(path, [f"is too large: it must be at most {limit}, not {size}"])


# ---------------------------------------------------------------------- writing


def write_output(path: Path, text: str | bytes) -> None:
    """Write a file that a user named, whole or not at all; a link is followed.

    Raises
    ------
    FileError
        If it cannot be written; an earlier file of that name is kept then.
    """
    data = text.encode() if isinstance(text, str) else text
    try:
        check_output(path)
        write_whole(path.resolve(), [data])
    except (OSError, ValueError, RuntimeError) as error:
        raise FileError(path, [_why_not(error)]) from None


def write_new(path: Path, text: str) -> None:
    """Write a file that does not exist yet.

    Raises
    ------
    FileError
        If something of that name exists, or the file cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
    except (OSError, ValueError) as error:
        raise FileError(path, [_why_not(error)]) from None


def check_output(path: Path) -> None:
    """Check, before the work begins, whether `write_output` can write a file.

    Raises
    ------
    FileError
        If the name is that of a folder, pipe, socket or device, or the folder that it would be
        written into does not exist or cannot be written.
    """
    try:
        real = path.resolve()
        with contextlib.suppress(FileNotFoundError):
            _refuse_kind(path, real.stat())
        if not os.access(real.parent, os.W_OK | os.X_OK):
            (real.parent / ".").stat()  # raises what is wrong, unless it is a missing permission
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise FileError(path, [_why_not(error)]) from None


def _why_not(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be written: {error.strerror or error}"
    return f"cannot be written: {error}"


def write_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file under a temporary name, and rename it when all of it is on the disk.

    If there is a link of that name, the link itself is replaced, and nothing is written to where it
    leads. Temporary files of the same name that a killed process left behind are removed.

    Raises
    ------
    OSError
        If it cannot be written; an earlier file of that name is kept then.
    """
    remove_leftovers(path.parent, path.name)
    part, descriptor = _hold(path, _create)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with contextlib.suppress(OSError):
                before = path.lstat()
                if stat.S_ISREG(before.st_mode):
                    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            part.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # an error of a write does not name the file
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Put the names of a folder's files on the disk, so that they survive a loss of power."""
    with contextlib.suppress(OSError):  # some file systems cannot sync a folder
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _hold(path: Path, create: Callable[[Path], int | None]) -> tuple[Path, int]:
    """Make and lock a temporary file or folder for a path; return its name and descriptor."""
    while True:
        part = path.parent / f".{path.name[:_MOST_NAME]}.{secrets.token_hex(4)}.part"
        descriptor = create(part)
        if descriptor is None:
            continue
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is_at(descriptor, part):
            return part, descriptor
        os.close(descriptor)  # before it was locked, another process removed it as a leftover


def _create(part: Path) -> int | None:
    with contextlib.suppress(FileExistsError):
        return os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    return None


def _create_folder(part: Path) -> int | None:
    with contextlib.suppress(FileExistsError):
        part.mkdir()
        with contextlib.suppress(FileNotFoundError):
            return os.open(part, os.O_RDONLY | os.O_DIRECTORY)
    return None


@contextlib.contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """Give an empty folder next to a path, in which to prepare what will get that path's name.

    The folder is removed at the end. If the process is killed, the next process that writes to the
    path removes it.

    Raises
    ------
    OSError
        If it cannot be made.
    """
    remove_leftovers(path.parent, path.name)
    folder, descriptor = _hold(path, _create_folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def exchange(fresh: Path, path: Path) -> None:
    """Exchange the names of a path and of a folder in the `scratch_folder` of that path.

    Both names change at once where the file system can do so. Where it cannot, and the process is
    killed between the two renamings, the next process that writes to the path puts the earlier
    folder back.

    Parameters
    ----------
    fresh : Path
        New folder, in the scratch folder.
    path : Path
        Name that it gets; what has this name goes to the scratch folder.

    Raises
    ------
    OSError
        If the file system refuses it.
    """
    here, swap = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
    names = os.fsencode(fresh), os.fsencode(path)
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
        if renameat2(here, names[0], here, names[1], swap) == 0:
            return
    except AttributeError:  # another C library
        pass
    path.replace(fresh.with_name(_BEFORE))
    fresh.replace(path)


def remove_folder(path: Path) -> None:
    """Remove a folder: at any time, it is either complete or gone.

    Raises
    ------
    OSError
        If it cannot be removed.
    """
    with scratch_folder(path) as scratch:
        path.replace(scratch / "removed")


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove temporary files and folders that killed processes have left behind.

    A process that still writes one holds a lock on it, so that it stays.

    Parameters
    ----------
    folder : Path
        Folder to look in; it need not exist.
    name : str, optional
        Name of the file that they were meant to become; if not given, leftovers of any file are
        removed.
    """
    try:
        found = [each for each in folder.iterdir() if _PART.fullmatch(each.name)]
    except OSError:
        return
    for each in found:
        if name is None or each.name.startswith(f".{name[:_MOST_NAME]}."):
            _remove_leftover(each, folder / name if name else None)


def _remove_leftover(path: Path, target: Path | None) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return  # it is gone, or it is no temporary file of fpgapipe
    try:
        if not _lock(descriptor) or not _is_at(descriptor, path):
            return
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            if target and not os.path.lexists(target) and (path / _BEFORE).is_dir():
                (path / _BEFORE).replace(target)
            shutil.rmtree(path, ignore_errors=True)
        elif stat.S_ISREG(os.fstat(descriptor).st_mode):
            path.unlink(missing_ok=True)
    except OSError:
        pass  # this process may not remove it; one that may will do so
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Try to lock a temporary file; return whether no living process holds its lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return time.time() - os.fstat(descriptor).st_mtime > STALE_S
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False
