"""Changes that somebody may make to a build folder, and to what a run leaves in it."""

import contextlib
import hashlib
import json
import os
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fpgapipe.host.build.build import MANIFEST
from fpgapipe.host.build.build_parts import CLUSTERS
from fpgapipe.host.runtime.checkpoint import MAGIC
from fpgapipe.partition.plan import Plan

STEPS = 2
"""Steps that the run in the build has done."""

NUMBERS = (0, -1, 1, 2, 3, 7, 64, 255, 2**16, 2**31, 2**40, 2**63, 10**30, 10**399, 0.5, 1e-300)
OTHERS = (None, True, "", "x", "../outside/secret.txt", "/dev/zero", "\0", "9" * 5000, [], {}, [[]])
TEXTS = ("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "[" * 50_000, "{", '"\\ud800"', "0x1")


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container and key in a value of JSON."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        each = waiting.pop()
        keys = each if isinstance(each, dict) else range(len(each))
        for key in keys:
            found.append((each, key))
            if isinstance(each[key], dict | list):
                waiting.append(each[key])
    return found


def change_value(rng: random.Random, value: Any) -> None:
    """Change a value of JSON somewhere."""
    known = places(value)
    if not known:
        return
    into, key = rng.choice(known)
    old = into[key]
    kind = rng.randrange(9)
    if kind <= 2 and isinstance(old, int | float) and not isinstance(old, bool):
        into[key] = rng.choice([old + 1, old - 1, old * 2, -old, old / 2 if old else 1, float(old)])
    elif kind <= 4:
        into[key] = rng.choice(NUMBERS)
    elif kind == 5:
        into[key] = rng.choice(OTHERS)
    elif kind == 6:
        del into[key]
    elif kind == 7:
        other, there = rng.choice(known)
        with contextlib.suppress(IndexError, KeyError):  # one may contain the other
            into[key] = json.loads(json.dumps(other[there]))
    elif isinstance(into, dict):
        into[rng.choice(["x", key + "x", "", "__class__"])] = into.pop(key)
    else:
        into.append(old)


def change_json(rng: random.Random, path: Path) -> None:
    """Change a JSON file, and mostly write it in the form in which a build does."""
    text = path.read_text()
    if rng.random() < 0.1:
        at = rng.randrange(len(text))
        path.write_text(text[:at] + rng.choice([*TEXTS, ""]) + text[at + rng.randrange(9) :])
        return
    value = json.loads(text)
    change_value(rng, value)
    text = json.dumps(value, indent=2 if path.name == MANIFEST else 1) + "\n"
    with contextlib.suppress(ValidationError, ValueError, OverflowError, RecursionError):
        if path.name == "cluster.json":
            text = CLUSTERS.dump_json(CLUSTERS.validate_json(text), indent=1).decode() + "\n"
        elif path.name == "plan.json":
            text = Plan.model_validate_json(text).to_json()
    path.write_text(text)


def change_bytes(rng: random.Random, path: Path) -> None:
    """Change bits, words or the end of a file."""
    data = bytearray(path.read_bytes())
    kind = rng.randrange(6)
    at = rng.randrange(max(len(data), 1))
    if kind <= 2 and data:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 3:
        data[at : at + 4] = rng.randbytes(4)
    elif kind == 4:
        del data[at : at + rng.choice([1, 4, 64, 10_000])]
    else:
        data[at:at] = rng.randbytes(rng.choice([1, 64, 4096]))
    path.write_bytes(data)


def change_kind(rng: random.Random, path: Path, outside: Path) -> None:
    """Replace a file by something else."""
    other = rng.choice([each for each in path.parent.iterdir() if each != path] or [path])
    kind = rng.randrange(9)
    if kind == 0 and other.is_file():
        data = path.read_bytes()
        path.write_bytes(other.read_bytes())
        other.write_bytes(data)
        return
    if kind == 1:
        os.truncate(path, rng.choice([0, 1, path.stat().st_size * 2, 10 << 30]))
        return
    path.rename(path.with_name(path.name + ".away"))
    if kind == 2:
        path.mkdir()
    elif kind == 3:
        os.mkfifo(path)
    elif kind == 4:
        path.symlink_to(path.with_name(path.name + ".away"))
    elif kind == 5:
        path.symlink_to(outside / "secret.txt")
    elif kind == 6:
        path.symlink_to(rng.choice(["/dev/zero", "/dev/tty", path.name, "/proc/self/mem"]))


def change_run(rng: random.Random, folder: Path, outside: Path) -> None:
    """Replace a folder or file to which runs write by a link."""
    name = rng.choice(["run", "run/model", "run/report.html", "run/model/checkpoints"])
    path = folder / name
    if any(each.is_symlink() for each in (path, *path.parents)):
        return  # the target of the link must not be changed
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(outside / rng.choice(["", "secret.txt", "nothing"]))


def change_checkpoint(rng: random.Random, path: Path) -> None:
    """Change a checkpoint's description or values, with a digest that is right."""
    data = path.read_bytes()
    _, head, values = data[len(MAGIC) :].split(b"\n", 2)
    text, changed = head.decode(), bytearray(values)
    kind = rng.randrange(5)
    if kind <= 2:
        value = json.loads(text)
        change_value(rng, value)
        text = json.dumps(value)
    elif kind == 3:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice([*TEXTS, "\n", ""]) + text[at + rng.randrange(5) :]
    else:
        at = rng.randrange(len(changed))
        changed[at : at + 4] = rng.choice([b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"", rng.randbytes(4)])
    body = text.encode("utf-8", "surrogatepass") + b"\n" + changed
    path.write_bytes(MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    if rng.random() < 0.05:
        os.truncate(path, rng.choice([100, 3 << 30, 10 << 30]))


def change_parameters(rng: random.Random, path: Path) -> None:
    """Change a file of arrays: headers, members, compression, or the list at its end."""
    members: dict[str, bytes] = {}
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    kind = rng.randrange(7)
    name = rng.choice(list(members))
    data = members[name]
    if kind == 0:
        shape = rng.choice([b"(4000000000,)", b"(2147483648, 2147483648)", b"(-1,)", b"(" * 50])
        at = data.index(b"'shape': (") + 9
        data = data[:at] + shape + data[data.index(b")", at) + 1 :]
    elif kind == 1:
        types = (b"'|O'", b"'<f2'", b"'|V9'", b"'<M8'", b"'<c8'", b"'>f4'", b"[('a','O')]")
        data = data.replace(b"'<f4'", rng.choice(types))
    elif kind == 2:
        data = data + bytes(rng.choice([1, 1 << 26]))
    elif kind == 3:
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        data = bytes(changed)
    elif kind == 4:
        data = data[: rng.randrange(len(data))]
    members[name] = data
    how = rng.choice(
        [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2]
    )
    with zipfile.ZipFile(path, "w", how) as archive:
        for each, content in members.items():
            archive.writestr(each, content)
        if kind == 5:
            archive.writestr(name.removesuffix(".npy"), data)
    if kind == 6:
        change_bytes(rng, path)


CHANGES = (*(("build", 14), ("link", 1), ("checkpoint", 2), ("parameters", 1), ("log", 1)),)
"""Kinds of changes, and how often each is made."""


def change(rng: random.Random, folder: Path, outside: Path) -> str:
    """Change one thing; returns the kind of change."""
    names, weights = zip(*CHANGES, strict=True)
    (kind,) = rng.choices(names, weights)
    files = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and "run" not in path.relative_to(folder).parts
    ]
    if kind == "build" and files:
        path = rng.choice(files)
        if rng.random() < 0.15:
            change_kind(rng, path, outside)
        elif path.suffix == ".json" and rng.random() < 0.95:
            with contextlib.suppress(Exception):  # likewise
                change_json(rng, path)
        elif path.stat().st_size < 1 << 24:
            change_bytes(rng, path)
    elif kind == "link":
        change_run(rng, folder, outside)
    elif not (folder / "run/model").is_symlink() and not (folder / "run").is_symlink():
        names = [
            folder / "run/model/log.jsonl",
            folder / "run/model/settings.json",
            folder / "run/measured.json",
        ]
        checkpoint = folder / f"run/model/checkpoints/step-{STEPS:08d}.ckpt"
        with contextlib.suppress(Exception):  # of what a change before this one has broken
            parameters = folder / "run/parameters.npz"
            path = {"checkpoint": checkpoint, "parameters": parameters}.get(kind)
            path = path or rng.choice(names)
            if not path.is_file():  # reading a pipe would never end
                return kind
            if kind == "checkpoint":
                change_checkpoint(rng, path)
            elif kind == "parameters":
                change_parameters(rng, path)
            elif path.suffix == ".json" and rng.random() < 0.8:
                change_json(rng, path)
            elif rng.random() < 0.1:
                change_kind(rng, path, outside)
            else:
                change_log(rng, path)
    return kind


def change_log(rng: random.Random, path: Path) -> None:
    """Change a line of a log."""
    lines = path.read_text().split("\n")
    at = rng.randrange(len(lines))
    with contextlib.suppress(ValueError):
        value = json.loads(lines[at])
        change_value(rng, value)
        lines[at] = json.dumps(value)
    if rng.random() < 0.2:
        lines.insert(at, rng.choice([*TEXTS, "[]", "3", '{"validation": 3}', "x" * 100_000]))
    path.write_text("\n".join(lines), errors="replace")


def renew(folder: Path) -> None:
    """Write sizes and digests of the manifest anew, as far as it still has any."""
    path = folder / MANIFEST
    if not path.is_file():  # reading a pipe would never end
        return
    try:
        manifest = json.loads(path.read_text())
        names = list(manifest["files"])
    except (MemoryError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return
    for name in names:
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, MemoryError):
            file = folder / name
            size = file.stat().st_size
            if file.is_file() and size < 1 << 24:
                digest = hashlib.sha256(file.read_bytes()).hexdigest()
                manifest["files"][name].update(bytes=size, sha256=digest)
            elif file.is_file():
                manifest["files"][name].update(bytes=size)
    with contextlib.suppress(OSError, ValueError):
        path.write_text(json.dumps(manifest, indent=2) + "\n")
