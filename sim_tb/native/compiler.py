"""The compiler of native simulators: clang++ where it works, else g++.

Code that Verilator generates is a third faster with clang++ than with g++ 12
(docs/decisions/0019). Results are the same. Debian and Ubuntu have it in the package ``clang``.
"""

import functools
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fpgapipe.errors import UserError

VARIABLE = "FPGAPIPE_CXX"
"""Variable of the environment that names another compiler, such as ``g++``."""

_CLANG = ("clang++", *(f"clang++-{version}" for version in range(24, 13, -1)))
_PROBE = "#include <atomic>\n#include <memory>\n#include <string>\nint main() {}\n"

# Instruction sets that a processor may have, with the flags of /proc/cpuinfo that say so and the
# options that use them; the first one that it has is taken.
_LEVELS = (
    (
        "avx512f avx512bw avx512cd avx512dq avx512vl avx2 bmi1 bmi2 fma f16c movbe abm",
        "-march=x86-64-v4 -mprefer-vector-width=512",
    ),
    ("avx2 bmi1 bmi2 fma f16c movbe abm", "-march=x86-64-v3"),
)


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler and its options for native simulators.

    Attributes
    ----------
    program : str
        Name on PATH, or path.
    hot : str
        Options for code that runs in each cycle.
    flags : str
        Options for all code.
    libraries : str
        Options for the linker.
    make : tuple of str
        Variables of Verilator's makefile, each as ``NAME=value``.
    """

    program: str
    hot: str
    flags: str
    libraries: str
    make: tuple[str, ...]

    @property
    def variables(self) -> tuple[str, ...]:
        """All variables of Verilator's makefile.

        Verilator's "slow" code runs once, before the first cycle: optimizing it would take a fifth
        of the build time and gain nothing.
        """
        return (
            *(f"CXX={self.program}", "LINK=g++", "AR=ar", "PERL=perl", "OBJCACHE="),
            *(f"OPT_FAST={self.hot}", "OPT_SLOW=-O0", "OPT_GLOBAL=-O2"),
            *self.make,
        )

    @property
    def identity(self) -> str:
        """Path, size and time of the program, as in ccache; empty if it is missing."""
        found = shutil.which(self.program)
        if found is None:
            return ""
        real = Path(found).resolve()
        status = real.stat()
        return f"{real} {status.st_size} {status.st_mtime_ns}"


# The Python package's makefile lacks the option with which each compiler reads a precompiled
# header. g++ 12 takes copies of arrays in Verilator's nested structures for aligned when it
# vectorises their loops, and the simulator crashes; there are few loops, and they gain nothing from
# it.
GXX = Compiler(
    program="g++",
    hot="-O3 -fno-tree-loop-vectorize",
    flags="-fno-semantic-interposition -fno-gnu-unique",
    libraries="",
    make=("CFG_CXXFLAGS_PCH_I=-include",),
)


def clang(program: str) -> Compiler:
    """Return clang++ with options for this machine's processor.

    A product and a sum stay two operations, which the models in C++ rely on.
    """
    return Compiler(
        program=program,
        hot=f"-O3 -ffp-contract=off {instruction_set()}".rstrip(),
        flags="-fno-semantic-interposition",
        libraries="-latomic",
        make=("CFG_CXXFLAGS_PCH_I=-include-pch", "CFG_GCH_IF_CLANG=.gch"),
    )


def native_compiler() -> Compiler:
    """Return the compiler of native simulators on this machine.

    Raises
    ------
    UserError
        If the environment names a compiler that does not work.
    """
    if given := os.environ.get(VARIABLE):
        if given == "g++":
            return GXX
        if "clang" not in Path(given).name:
            raise UserError(f"{VARIABLE} must name g++ or a clang++, not {given!r}")
        if not _works(given, os.environ.get("PATH", "")):
            raise UserError(f"{VARIABLE} names {given!r}, which cannot compile a C++20 program")
        return clang(given)
    found = clang_program()
    return clang(found) if found else GXX


def clang_program() -> str | None:
    """Name of the newest clang++ on PATH that works; None if there is none."""
    return _found(os.environ.get("PATH", ""))


def instruction_set(processor: Path = Path("/proc/cpuinfo")) -> str:
    """Options for the newest instruction set of an x86 processor, given what Linux says of it."""
    try:
        text = processor.read_text()
    except OSError:
        return ""
    flags = set(" ".join(re.findall(r"^flags\s*:(.*)$", text, re.MULTILINE)[:1]).split())
    return next((option for needed, option in _LEVELS if flags >= set(needed.split())), "")


@functools.cache
def _found(path: str) -> str | None:
    return next((each for each in _CLANG if shutil.which(each) and _works(each, path)), None)


@functools.cache
def _works(program: str, path: str) -> bool:
    """Whether a clang++ finds the headers and libraries of g++, those of libatomic included."""
    del path  # another PATH may have another program
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "-std=gnu++20", "-fPIC", "-shared", "-latomic", "-x", "c++", "-"]
        command += ["-o", str(Path(folder, "probe.so"))]
        try:
            done = subprocess.run(
                command, input=_PROBE, text=True, capture_output=True, check=False
            )
        except OSError:
            return False
    return done.returncode == 0
