"""Compiles small designs as two C++ files, which takes a third of the time.

Verilator writes a dozen C++ files and precompiles a header for each of two levels of optimisation.
For a small design, compiling those two headers and reading the library's headers again for each
file is most of the work.
"""

import re
from pathlib import Path

SMALL_BYTES = 1_500_000
"""Size of the C++ sources, bytes, up to which a design is compiled as two files. A larger design
compiles faster as many files, which several processors compile concurrently."""

_PIECES = ("FAST", "SLOW")


def merge_sources(folder: Path, prefix: str) -> list[str]:
    """Merge the C++ files of a small design into one of hot code and one of rarely run code.

    Parameters
    ----------
    folder : Path
        Folder in which Verilator has written its files.
    prefix : str
        Name of the model's class.

    Returns
    -------
    list of str
        Variables for make; empty if the design is large and its files stay as they are.
    """
    sources = {piece: _sources(folder / f"{prefix}_classes.mk", piece) for piece in _PIECES}
    names = [name for piece in _PIECES for name in sources[piece]]
    if sum((folder / f"{name}.cpp").stat().st_size for name in names) > SMALL_BYTES:
        return []
    variables = []
    for piece in _PIECES:
        merged = f"{prefix}__{piece.lower()}"
        lines = [f'#include "{name}.cpp"\n' for name in sources[piece]]
        (folder / f"{merged}.cpp").write_text("".join(lines))
        variables += [f"VM_CLASSES_{piece}={merged}", f"VM_SUPPORT_{piece}=", f"VK_PCH_I_{piece}="]
    # Verilator's makefile insists on precompiling a header, so it gets an empty one.
    empty = f"{prefix}__empty.h"
    (folder / empty).write_text("")
    return [*variables, f"VK_PCH_H={empty}"]


def _sources(makefile: Path, piece: str) -> list[str]:
    """Names of the C++ files that Verilator's makefile lists under `piece`."""
    lists = re.findall(
        rf"^VM_(?:CLASSES|SUPPORT)_{piece} \+= \\\n((?:  \w+ \\\n)*)",
        makefile.read_text(),
        re.MULTILINE,
    )
    return [name for names in lists for name in re.findall(r"\w+", names)]
