"""Small designs are compiled in two pieces, which takes a third of the time.

Verilator writes a dozen C++ files and has a header compiled in advance for each of two levels of
optimisation. For a small design, those two headers and the repeated reading of the library's
headers are most of the work.
"""

import re
from pathlib import Path

SMALL_BYTES = 1_500_000
"""C++ of a design up to which it is compiled in two pieces: larger ones gain by many files, which
two processors compile side by side."""

_PIECES = ("FAST", "SLOW")


def merge_sources(folder: Path, prefix: str) -> list[str]:
    """Merge what Verilator wrote into one file of hot and one of rarely run code, if it is small.

    Parameters
    ----------
    folder : Path
        Where Verilator has written its files.
    prefix : str
        Name of the model's class.

    Returns
    -------
    list of str
        Variables for make; none if the design is large.
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
    # Verilator's makefile wants some header compiled in advance: an empty one.
    empty = f"{prefix}__empty.h"
    (folder / empty).write_text("")
    return [*variables, f"VK_PCH_H={empty}"]


def _sources(makefile: Path, piece: str) -> list[str]:
    """Names of the C++ files that a makefile of Verilator's lists under `piece`."""
    lists = re.findall(
        rf"^VM_(?:CLASSES|SUPPORT)_{piece} \+= \\\n((?:  \w+ \\\n)*)",
        makefile.read_text(),
        re.MULTILINE,
    )
    return [name for names in lists for name in re.findall(r"\w+", names)]
