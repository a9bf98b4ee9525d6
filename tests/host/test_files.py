"""Files opened and written with care."""

import fcntl
import os
import stat
from pathlib import Path

import pytest
from odd_files import ODD

from fpgapipe import files
from fpgapipe.errors import FileError


def make(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / "file"
    ODD[kind](path)
    return path


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("fifo", "is no ordinary file but a pipe; name a file on a disk"),
        ("device", "is no ordinary file but a device; name a file on a disk"),
        ("socket", "is no ordinary file but a socket; name a file on a disk"),
        ("folder", "is a folder, not a file"),
        ("loop", "cannot be read: Too many levels of symbolic links"),
        ("sparse", "is too large: it must be at most 4 KiB, not 10 GiB"),
        ("absent", "there is no such file"),
    ],
)
def test_what_is_no_ordinary_file_is_refused_at_once(tmp_path, kind, fault):
    path = make(tmp_path, kind)
    for read in (files.open_file, files.read_bytes, files.read_text, files.read_json):
        with pytest.raises(FileError) as caught:
            read(path, 4096)
        assert str(caught.value) == f"{path}: {fault}"


def test_what_may_not_be_read_is_refused(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    path = make(tmp_path, "unreadable")
    monkeypatch.setattr("os.open", refuse)  # root may read everything
    with pytest.raises(FileError, match="file: cannot be read: Permission denied"):
        files.read_bytes(path, 4096)


def test_what_takes_the_place_of_a_file_is_noticed(tmp_path, monkeypatch):
    path = make(tmp_path, "fifo")
    ordinary = tmp_path / "ordinary"
    ordinary.write_bytes(b"")
    status = ordinary.stat()
    monkeypatch.setattr(Path, "stat", lambda self: status)
    with pytest.raises(FileError, match="but a pipe"):
        files.open_file(path, 1)


def test_limits_are_kept(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert files.read_bytes(path, 5) == b"12345"
    with pytest.raises(FileError, match="must be at most 4 bytes, not 5 bytes"):
        files.read_bytes(path, 4)
    path.write_bytes(b"x" * 4097)
    with pytest.raises(FileError, match="must be at most 4 KiB, not 4,097 bytes"):
        files.read_bytes(path, 4096)
    # A file that grew since it was opened, such as those of /proc, whose size is said to be 0.
    with pytest.raises(FileError, match="must be at most 4 bytes"):
        files.read_bytes(Path("/proc/self/status"), 4)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"a\nb\xff", "line 2: must be UTF-8 text, not byte 0xff"),
        (b"", "is no JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"[1, NaN]", "is no JSON: NaN is no number of JSON"),
        (b"[-Infinity]", "is no JSON: -Infinity is no number of JSON"),
        (b"[" * 100_000, "is no JSON: it is nested too deeply"),
        (b"9" * 5000, "is no JSON: a number of 5,000 digits is too long"),
    ],
)
def test_json_is_what_the_standard_says(tmp_path, text, fault):
    path = tmp_path / "file"
    path.write_bytes(text)
    with pytest.raises(FileError) as caught:
        files.read_json(path, 1 << 20)
    assert str(caught.value) == f"{path}: {fault}"


def test_json_is_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b'\xef\xbb\xbf{"a": [1, 2.5, true]}')
    assert files.read_json(path, 100) == {"a": [1, 2.5, True]}


# ---------------------------------------------------------------------- writing


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@pytest.mark.parametrize("write", [files.write_output, lambda p, d: files.write_whole(p, [d])])
def test_a_file_is_replaced_whole_and_keeps_its_mode(tmp_path, write):
    path = tmp_path / ("n" * 250)
    write(path, b"one")
    path.chmod(0o640)
    write(path, b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert names(tmp_path) == [path.name]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch, error):
    path = tmp_path / "file"
    path.write_bytes(b"earlier")

    def fail(descriptor):
        raise error

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(type(error)) as caught:
        files.write_whole(path, [b"later"])
    assert isinstance(error, KeyboardInterrupt) or caught.value.filename == str(path)
    assert path.read_bytes() == b"earlier"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("fifo", "is no ordinary file but a pipe; name a file on a disk"),
        ("device", "is no ordinary file but a device; name a file on a disk"),
        ("folder", "is a folder, not a file"),
        ("loop", "cannot be written: "),
    ],
)
def test_outputs_go_to_ordinary_files(tmp_path, kind, fault):
    path = make(tmp_path, kind)
    for write in (lambda: files.write_output(path, "text"), lambda: files.check_output(path)):
        with pytest.raises(FileError) as caught:
            write()
        assert str(caught.value).startswith(f"{path}: {fault}")
    assert names(tmp_path) == ["file"]
    assert path.is_symlink() == (kind in ("device", "loop"))


def test_outputs_need_a_folder(tmp_path):
    with pytest.raises(FileError, match="cannot be written: No such file or directory"):
        files.write_output(tmp_path / "no" / "file", "text")
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="cannot be written: Not a directory"):
        files.write_output(tmp_path / "file" / "file", "text")


def test_links_are_written_through_where_a_user_names_them_and_else_replaced(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"earlier")
    link.symlink_to(target)
    files.write_output(link, "later")
    assert target.read_bytes() == b"later"
    assert link.is_symlink()
    files.write_whole(link, [b"last"])
    assert target.read_bytes() == b"later"
    assert link.read_bytes() == b"last"
    assert not link.is_symlink()


def test_leftovers_of_the_killed_go_and_those_of_the_living_stay(tmp_path):
    dead, living = tmp_path / ".file.00000000.part", tmp_path / ".file.11111111.part"
    other, folder = tmp_path / ".other.00000000.part", tmp_path / ".file.22222222.part"
    for each in (dead, living, other, tmp_path / ".file.mine.part", tmp_path / "file.part"):
        each.write_bytes(b"half")
    (folder / "new").mkdir(parents=True)
    with living.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        files.write_whole(tmp_path / "file", [b"whole"])
        kept = [".file.11111111.part", ".file.mine.part", ".other.00000000.part"]
        assert names(tmp_path) == [*kept, "file", "file.part"]
        files.remove_leftovers(tmp_path)
        assert names(tmp_path) == [*kept[:2], "file", "file.part"]
    files.remove_leftovers(tmp_path)
    assert names(tmp_path) == [".file.mine.part", "file", "file.part"]


def test_two_folders_change_places(tmp_path):
    other = tmp_path / "other"
    with files.scratch_folder(other) as scratch:
        assert scratch.parent == tmp_path
        files.remove_leftovers(tmp_path)  # of a second process
        assert scratch.exists()
        other.mkdir()
        (other / "of other").touch()
        fresh = scratch / "new"
        fresh.mkdir()
        (fresh / "of new").touch()
        files.exchange(fresh, other)
        assert names(other) == ["of new"]
        assert names(fresh) == ["of other"]
    assert names(tmp_path) == ["other"]


def test_what_a_killed_exchange_took_away_is_put_back(tmp_path, monkeypatch):
    """On a file system that cannot exchange names, whose process is killed in between."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "earlier").touch()
    scratch = tmp_path / ".folder.00000000.part"
    (scratch / "new").mkdir(parents=True)
    replace = Path.replace

    def killed(self, target):
        if self.name == "new":
            raise KeyboardInterrupt
        replace(self, target)

    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: None)
    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        files.exchange(scratch / "new", folder)
    assert names(tmp_path) == [scratch.name]
    with files.scratch_folder(folder) as fresh:
        assert names(tmp_path) == sorted([fresh.name, "folder"])
    assert names(folder) == ["earlier"]


def test_a_signal_while_a_file_is_opened_stays_what_it_is(tmp_path, monkeypatch):
    """The file is closed, once."""
    path = tmp_path / "a"
    path.write_text("a")
    seen = []

    def interrupted(number):
        seen.append(number)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", interrupted)
        with pytest.raises(KeyboardInterrupt):
            files.open_file(path, 10)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(seen[0])
