"""The compiler of native simulators: clang++ where it works, else g++.

Code that Verilator generates is a third faster with clang++ than with g++ 12
(docs/decisions/0019). Results are the same. Debian and Ubuntu have it in the package ``clang``.

Whether a clang++ works is tried once and then remembered (`fpgapipe.answers`), for ever if it does
and for up to an hour if it does not, since what it lacks may be installed.
"""

import functools
import logging
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from fpgapipe.answers import remembered
from fpgapipe.errors import ToolError, UserError
from fpgapipe.tools import identity_of, run_tool

logger = logging.getLogger(__name__)

VARIABLE = "FPGAPIPE_CXX"
"""Variable of the environment that names another compiler, such as ``g++``."""

PROBE_S = 30.0
"""Seconds in which a clang++ has to compile a small program."""

_REMEMBERED_S = 3600
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
    runtime : str
        Options for Verilator's runtime library.
    """

    program: str
    hot: str
    flags: str
    libraries: str
    make: tuple[str, ...]
    runtime: str = "-O2"

    @property
    def variables(self) -> tuple[str, ...]:
        """All variables of Verilator's makefile.

        Verilator's "slow" code runs once, before the first cycle: optimizing it would take a fifth
        of the build time and gain nothing.
        """
        return (
            *(f"CXX={self.program}", "LINK=g++", "AR=ar", "PERL=perl", "OBJCACHE="),
            *(f"OPT_FAST={self.hot}", "OPT_SLOW=-O0", f"OPT_GLOBAL={self.runtime}"),
            *self.make,
        )

    @property
    def identity(self) -> str:
        """Identity of the program among others of its name; see `fpgapipe.tools.identity_of`."""
        return identity_of(self.program)


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
    if not identity_of(program):
        return False
    question = {
        "program": shutil.which(program),
        "identities": [identity_of(each) for each in (program, GXX.program)],
        "probe": _PROBE,
    }
    lately = {**question, "fails within": [_REMEMBERED_S, int(time.time() // _REMEMBERED_S)]}

    def fails() -> bool | None:
        return None if _probe(program) else True

    def works() -> bool | None:
        return None if _remembered(lately, fails) else True

    return bool(_remembered(question, works))


_remembered = functools.partial(remembered, "compilers", ("sim_tb.native",))


def _probe(program: str) -> bool:
    """Let a clang++ compile a small program."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "probe.cpp"), Path(folder, "probe.so")
        source.write_text(_PROBE)
        command: list[str | Path] = [program, "-std=gnu++20", "-fPIC", "-shared", "-latomic"]
        command += [source, "-o", library]
        try:
            run_tool(command, log=Path(folder, "log"), outputs=[library], timeout_s=PROBE_S)
        except (ToolError, OSError) as error:
            reason = str(error).partition("\n")[0]
            logger.warning("%s compiles no simulators: %s", program, reason)
            return False
    return True
