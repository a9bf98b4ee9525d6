"""SCALE-Sim topologies: CSV tables of convolutions or of matrix products.

The first line of the file has one of two forms::

    Layer name, IFMAP Height, IFMAP Width, Filter Height, Filter Width, Channels, Num Filter,
        Strides
    Layer, M, N, K

Convolutions may have a second stride, that of the width, and either form a column ``Sparsity``, in
which every layer has to be dense (``1:1``). Other columns are refused.

SCALE-Sim's inputs are already padded, and the sizes of its outputs are rounded up, so a last,
partly filled window counts. Padding after the data gives our layers the same sizes. The layers form
a chain; where the output of one is not the input of the next (because of pooling or padding), an
``unlisted`` layer is inserted between them.
"""

import re
from pathlib import Path

from fpgapipe.errors import FileError, shown
from fpgapipe.network.frontends.text import Faults, csv_rows
from fpgapipe.network.graph import Graph, GraphBuilder, NetworkError
from fpgapipe.network.operators import Conv, Linear, Operator, Unlisted
from fpgapipe.network.operators.tensors import ShapeError, Tensor

CONV_COLUMNS = (
    "ifmap height",
    "ifmap width",
    "filter height",
    "filter width",
    "channels",
    "num filter",
    "strides",
)
GEMM_COLUMNS = ("m", "n", "k")


STRIDES_OF_HEIGHT = ("strides", "stride", "stride height")
STRIDES_OF_WIDTH = ("stride width", "strides width", "stride w")


def _names(header: list[str]) -> list[str]:
    """Names of all columns in one spelling, without the empty ones at the end."""
    names = [" ".join(cell.lower().replace("_", " ").split()) for cell in header]
    while names and not names[-1]:
        names.pop()
    return names


def columns_of(header: list[str]) -> tuple[str, ...] | None:
    """The columns of the form to which a first row belongs; None if it is neither."""
    names = _names(header)
    if not names or names[0] not in ("layer", "layer name", "layername", "name"):
        return None
    for columns in (CONV_COLUMNS, GEMM_COLUMNS):
        found = [
            "strides" if name in STRIDES_OF_HEIGHT else name.replace("num filters", "num filter")
            for name in names[1 : len(columns) + 1]
        ]
        if tuple(found) == columns:
            return columns
    return None


def _further_columns(faults: Faults, line: int, header: list[str], known: int) -> list[str]:
    """The columns behind those of the form; those that nobody reads are faults."""
    further = _names(header)[known + 1 :]
    for place, name in enumerate(further):
        is_stride = known == len(CONV_COLUMNS) and place == 0 and name in STRIDES_OF_WIDTH
        if not is_stride and name != "sparsity":
            cell = header[known + 1 + place]
            faults.add(line, f"column {cell!r} is not read; leave it out")
        elif further.count(name) > 1:
            faults.add(line, f"column {header[known + 1 + place]!r} is there twice")
    return further


def read_scalesim(path: Path, batch: int | None = None) -> Graph:
    """Read a SCALE-Sim topology.

    Parameters
    ----------
    path : Path
    batch : int, optional
        Images in a batch for a table of convolutions, by default 1. A table of matrix products has
        its batch in M and takes none.

    Raises
    ------
    FileError
        If the file is no valid topology. The message lists every fault.
    NetworkError
        If a batch other than 1 is given for a table of matrix products.
    """
    rows = list(csv_rows(path))
    columns = columns_of(rows[0][1]) if rows else None
    if columns is None:
        raise FileError(path, ["is no SCALE-Sim topology: its first row must name the columns"])
    if columns is GEMM_COLUMNS and batch not in (None, 1):
        raise NetworkError(
            f"{path}: a table of matrix products has its batch in M; --batch does not apply to it"
        )
    faults = Faults(path)
    further = _further_columns(faults, *rows[0], len(columns))
    faults.raise_if_any()
    layers: list[tuple[int, str, Tensor, Operator]] = []
    seen: dict[str, int] = {}
    for line, cells in rows[1:]:
        name = cells[0]
        if not name:
            faults.add(line, "the layer has no name")
            continue
        if name in seen:
            faults.add(line, f"layer {name!r} is already on line {seen[name]}")
            continue
        seen[name] = line
        if len(cells) < len(columns) + 1:
            faults.add(line, f"layer {name!r} has {len(cells)} columns, not {len(columns) + 1}")
            continue
        known = len(faults)
        own, more = cells[1 : len(columns) + 1], cells[len(columns) + 1 :]
        numbers = [
            faults.integer(line, f"layer {name!r}: {column}", cell)
            for column, cell in zip(columns, own, strict=True)
        ]
        stride = _read_further(faults, line, name, further, more, columns is CONV_COLUMNS)
        if len(faults) > known:
            continue
        try:
            if columns is GEMM_COLUMNS:
                m, n, k = numbers
                layers.append((line, name, Tensor((m, k)), Linear(n, bias=False)))
            else:
                x = Tensor((batch or 1, numbers[4], *numbers[:2]))
                conv = _conv(faults, line, name, numbers, stride or numbers[-1])
                layers += [(line, name, x, conv)] if conv else []
        except ShapeError as error:
            faults.add(line, f"layer {name!r}: {error}")
    if not layers:
        faults.add(None, "the table has no layers")
    faults.raise_if_any()
    return _chain(path, 1 if columns is GEMM_COLUMNS else batch or 1, layers)


def _read_further(
    faults: Faults, line: int, name: str, further: list[str], cells: list[str], is_conv: bool
) -> int | None:
    """Read the cells behind those of the form; gives the stride of the width, if there is one.

    SCALE-Sim takes an eighth number of a convolution as that stride, whether the header has it or
    not.
    """
    if is_conv and not further:
        further = ["stride width"]
    values = dict(zip(further, cells, strict=False))
    for cell in filter(None, cells[len(further) :]):
        faults.add(line, f"layer {name!r}: no column says what {shown(cell)} is")
    sparsity = values.pop("sparsity", "") or "1:1"
    if not re.fullmatch(r"(\d{1,9}):\1", sparsity, re.ASCII):
        faults.add(line, f"layer {name!r}: sparsity must be 1:1 (dense), not {shown(sparsity)}")
    (stride,) = values.values() or ("",)
    return faults.integer(line, f"layer {name!r}: stride of the width", stride) if stride else None


def _conv(
    faults: Faults, line: int, name: str, numbers: list[int], stride_width: int
) -> Conv | None:
    height, width, kernel_height, kernel_width, _, filters, stride_height = numbers
    if kernel_height > height or kernel_width > width:
        faults.add(
            line,
            f"layer {name!r}: filter {kernel_height}x{kernel_width} is larger than its input "
            f"{height}x{width}",
        )
        return None
    # Outputs are rounded up: as many zeros as the last window lacks are added after the data.
    kernel, strides = (kernel_height, kernel_width), (stride_height, stride_width)
    padding = tuple(
        (0, -(size - k) % stride)
        for size, k, stride in zip((height, width), kernel, strides, strict=True)
    )
    return Conv(filters, kernel, strides, padding, (1, 1), bias=False)


def _chain(path: Path, batch: int, layers: list[tuple[int, str, Tensor, Operator]]) -> Graph:
    builder = GraphBuilder(path.stem, batch)
    names = {name for _, name, _, _ in layers}
    x = builder.input(_free("input", names), layers[0][2])
    for line, name, needed, operator in layers:
        try:
            if builder.tensor(x) != needed:
                x = builder.add(_free(f"before {name}", names), Unlisted(needed.shape), x)
            x = builder.add(name, operator, x)
        except NetworkError as error:
            raise FileError(path, [f"line {line}: {error}"]) from None
    return builder.build()


def _free(name: str, taken: set[str]) -> str:
    """The name, with as many underscores appended as it takes until it is not taken."""
    while name in taken:
        name += "_"
    return name
