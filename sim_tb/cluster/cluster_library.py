"""Compiles ``native_cluster.cpp`` to a library and loads it for Python."""

import ctypes
import functools
import hashlib
from enum import IntEnum
from importlib import resources
from pathlib import Path
from typing import Any

from fpgapipe.sim_tb.native.verilate import SIMULATOR, cached_simulator
from fpgapipe.tools import run_tool

_SOURCE = "native_cluster.cpp"
_COMMAND = (
    *("g++", "-std=gnu++20", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"),
    *("-o", SIMULATOR, _SOURCE),
)
_CALLS = ("run", "access", "cycle", "flying", "taken", "give", "state")


class Member(ctypes.Structure):
    """A device: handle, functions of its library, whether a run awaits its interrupt, its part."""

    _fields_ = [
        ("device", ctypes.c_void_p),
        ("calls", ctypes.c_void_p * len(_CALLS)),
        ("awaited", ctypes.c_uint64),
        ("part", ctypes.c_uint64),
    ]

    @classmethod
    def of(cls, handle: int, library: ctypes.CDLL, awaited: bool, part: int) -> "Member":
        """Describe a device; those with the same part run in one thread."""
        calls = [
            ctypes.cast(getattr(library, f"fpgapipe_{name}"), ctypes.c_void_p) for name in _CALLS
        ]
        return cls(handle, (ctypes.c_void_p * len(_CALLS))(*calls), awaited, part)


class Route(ctypes.Structure):
    """A connection from a port of one device to a port of another, and cycles that it allows."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("source", "source_port", "target", "target_port", "window")
    ]


class Reading(ctypes.Structure):
    """Value of a register, its index in the list, and the cycle in which the reading began."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("index", "cycle", "value")]


class Reason(IntEnum):
    """Reason for the end of a run."""

    CYCLES = 0
    INTERRUPTS = 1
    TIME = 2
    FAILED = 3
    STALLED = 4


def _compile(folder: Path, cache: Path, log: Path) -> None:
    run_tool(_COMMAND, log=log, outputs=[folder / SIMULATOR], cwd=folder)


@functools.cache
def cluster_library() -> ctypes.CDLL:
    """Compile the library, or take it from the cache; its functions release Python's lock."""
    text = resources.files(__package__).joinpath(_SOURCE).read_text()
    path = cached_simulator(
        "cluster",
        {_SOURCE: text},
        {"command": _COMMAND, "source": hashlib.sha256(text.encode()).hexdigest()},
        _compile,
    )
    library = ctypes.CDLL(str(path))
    handle, integer = ctypes.c_void_p, ctypes.c_int
    u32, u64 = ctypes.c_uint32, ctypes.c_uint64
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "create": (
            handle,
            [ctypes.POINTER(Member), u64, ctypes.POINTER(Route), u64, u64, u64, u64],
        ),
        "destroy": (None, [handle]),
        "reset": (None, [handle]),
        "cycle": (u64, [handle]),
        "moved": (u64, [handle]),
        "poll": (None, [handle, u64, ctypes.POINTER(u32), u64, u64]),
        "sample": (None, [handle, u64]),
        "readings": (ctypes.POINTER(Reading), [handle, u64, ctypes.POINTER(u64)]),
        "watched": (ctypes.POINTER(u32), [handle, u64]),
        "forget": (None, [handle, u64]),
        "save": (ctypes.POINTER(u64), [handle, ctypes.POINTER(u64)]),
        "restore": (integer, [handle, ctypes.c_char_p, u64]),
        "begin": (None, [handle, u64]),
        "run": (u64, [handle, u64, integer, ctypes.c_double]),
        "access": (integer, [handle, u64, u32, ctypes.POINTER(u32), integer, u64]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"fpgapipe_cluster_{name}")
        function.restype, function.argtypes = result, arguments
    return library
