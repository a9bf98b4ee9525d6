"""Compiles the model's instructions in C++ to a library, once, and loads it.

Kernels are compiled for each instruction set of x86 processors; which one is used is decided when a
program is prepared. ``FPGAPIPE_SIMD`` in the environment (plain, avx2 or avx512) asks for one at
most, and ``OMP_NUM_THREADS`` says how many threads work on an instruction. Neither changes a bit.
"""

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any

from fpgapipe.cache import cache_dir
from fpgapipe.errors import ToolError, UserError
from fpgapipe.library_cache import cached_library
from fpgapipe.tools import identity_of, run_tool

logger = logging.getLogger(__name__)

COMPILER = "g++"

LIBRARY = "model.so"
"""File name of the compiled library."""

PAYS_NS = 40_000
"""Work for which another thread is woken, in ns."""

_PROGRAM, _KERNELS = "model_program.cpp", "model_kernels.cpp"
_SOURCES = (
    _PROGRAM,
    _KERNELS,
    "model_function.hpp",
    "model_gemm.hpp",
    "model_kernels.hpp",
    "model_lanes.hpp",
    "model_random.hpp",
    "model_threads.hpp",
    "model_vector.hpp",
)
# A product and a sum stay two operations, each of which is rounded.
_FLAGS = ("-std=gnu++20", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-w")
_X86 = ("x86_64", "amd64")
_AVX512 = ("f", "bw", "vl", "dq", "vnni")


def instruction_sets() -> dict[str, tuple[str, ...]]:
    """Names of the instruction sets that kernels are compiled for here, with their options."""
    sets: dict[str, tuple[str, ...]] = {"plain": ()}
    if platform.machine().lower() in _X86:
        sets["avx2"] = ("-DFPGAPIPE_AVX2", "-mavx2")
        sets["avx512"] = (
            "-DFPGAPIPE_AVX512",
            *(f"-mavx512{each}" for each in _AVX512),
            "-mprefer-vector-width=512",
        )
    return sets


def build_library(*, faults: bool = False) -> Path:
    """Compile the library, or return the cached one.

    Parameters
    ----------
    faults : bool
        Whether the library can be told to make deliberate faults, for tests.

    Raises
    ------
    UserError
        If there is no compiler, or the cache cannot be used.
    ToolError
        If the compiler fails.
    """
    files = resources.files(__package__)
    texts = {name: files.joinpath(name).read_text() for name in _SOURCES}
    identity = identity_of(COMPILER)
    if not identity:
        raise UserError(f"there is no {COMPILER} on PATH")
    options = (*_FLAGS, *(["-DFPGAPIPE_FAULTS"] if faults else []))
    sets = instruction_sets()
    ingredients = {
        "model": [options, sets],
        "compiler": identity,
        **{name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()},
    }

    def compile_(folder: Path, log: Path) -> None:
        # Libraries with faults run once.
        hot = "-O1" if faults else "-O3"
        commands = {"program.o": [*options, "-O1", "-c", _PROGRAM]}
        for name, flags in sets.items():
            commands[f"{name}.o"] = [*options, hot, *flags, "-c", _KERNELS]

        def compiled(name: str) -> None:
            run_tool(
                [COMPILER, *commands[name], "-o", name],
                log=log.with_suffix(f".{name}.log"),
                outputs=[folder / name],
                cwd=folder,
            )

        with ThreadPoolExecutor(num_processors()) as pool:
            list(pool.map(compiled, commands))
        link = [COMPILER, "-shared", "-pthread", *commands, "-o", LIBRARY]
        run_tool(link, log=log, outputs=[folder / LIBRARY], cwd=folder)

    return cached_library(cache_dir(), LIBRARY, "the bit-exact model", texts, ingredients, compile_)


def begin_library() -> threading.Thread | None:
    """Begin to compile the library in a thread, which is returned; none with a single processor.

    A failure is told when the library is asked for, which tries again.
    """
    if num_processors() < 2:
        return None

    def compile_() -> None:
        with contextlib.suppress(UserError):
            build_library()

    thread = threading.Thread(target=compile_, name="the bit-exact model")
    thread.start()
    return thread


def num_processors() -> int:
    """Number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_threads() -> int:
    """Number of threads that work on an instruction: ``OMP_NUM_THREADS``, or all processors."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(given) if given.isdecimal() and int(given) else num_processors()


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the library; None, with a warning, if it cannot be compiled."""
    try:
        path = build_library()
    except (ToolError, UserError) as error:
        reason = str(error).partition("\n")[0]
        logger.warning(
            "%s, so the bit-exact model runs without machine code, which takes tens of times as "
            "long",
            reason,
        )
        return None
    return loaded(path)


def loaded(path: Path) -> ctypes.CDLL:
    """Load a library that `build_library` returned; its functions release Python's lock."""
    made = ctypes.CDLL(str(path))
    handle, number, numbers = ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "create": (handle, [*(number,) * 4, ctypes.c_char_p]),
        "table": (None, [handle, numbers, number]),
        "destroy": (None, [handle]),
        "operand": (number, [handle, numbers]),
        "result": (number, [handle, numbers]),
        "vector": (number, [handle, numbers]),
        "take": (None, [handle, numbers, number]),
        "run": (number, [handle, handle, number, numbers, number, number]),
        "threads": (None, [number, number]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(made, f"fpgapipe_model_{name}")
        function.restype, function.argtypes = result, arguments
    if hasattr(made, "fpgapipe_model_fault"):
        made.fpgapipe_model_fault.argtypes = [number]
    made.fpgapipe_model_threads(num_threads(), PAYS_NS)
    return made
