"""Profiles (measured networks): PipeDream's ``graph.txt`` and a CSV table of per-layer times.

Profiles have times and bytes instead of shapes; their layers are `Measured`.
"""

import re
from pathlib import Path

from fpgapipe.errors import FileError, nearest, shown
from fpgapipe.network.frontends.text import Faults, csv_rows, read_text
from fpgapipe.network.graph import Graph, GraphBuilder, NetworkError
from fpgapipe.network.operators import Measured

CSV_COLUMNS = (
    "layer",
    "forward_s",
    "backward_input_s",
    "backward_weight_s",
    "output_bytes",
    "weight_bytes",
)
SAMPLES = "samples"
"""Optional column: samples of the micro-batch that was measured."""

_GRAPH_KEYS = (
    "forward_compute_time",
    "backward_compute_time",
    "activation_size",
    "parameter_size",
)
_NODE = re.compile(r"(?P<name>\S+) -- (?P<label>.*) -- (?P<numbers>forward_compute_time=.*)")
_EDGE = re.compile(r"\s+(\S+) -- (\S+)\s*")
_INPUT = re.compile(r"Input\d*")
_STAGE = re.compile(r"stage_id=\d+", re.ASCII)


def read_csv_profile(path: Path, batch: int | None = None) -> Graph:
    """Read a CSV with the columns of `CSV_COLUMNS`, in any order; the layers form a chain.

    There may be one more column, `SAMPLES`, with the same number in all rows.

    Raises
    ------
    FileError
        If the file is no valid profile. The message lists every fault.
    NetworkError
        If a batch is given, since measurements hold only for the batch with which they were made.
    """
    _refuse_batch(path, batch)
    rows = list(csv_rows(path))
    faults = Faults(path)
    header = [cell.lower() for cell in rows[0][1]] if rows else []
    for column in CSV_COLUMNS:
        if column not in header:
            faults.add(1, f"column {column!r} is missing")
    for column in header:
        if column and column not in (*CSV_COLUMNS, SAMPLES):
            faults.add(1, f"unknown column {column!r}{nearest(column, CSV_COLUMNS)}")
        if column and header.count(column) > 1:
            faults.add(1, f"column {column!r} is there twice")
    while header and not header[-1]:
        header.pop()
    if "" in header:
        faults.add(1, f"column {header.index('') + 1} has no name")
    faults.raise_if_any()

    builder: GraphBuilder | None = None
    previous: tuple[str, ...] = ()
    seen: dict[str, int] = {}
    samples: int | None = None
    for line, cells in rows[1:]:
        if len(cells) < len(header) or any(cells[len(header) :]):
            faults.add(line, f"the row has {len(cells)} columns, not {len(header)}")
            continue
        row = dict(zip(header, cells, strict=False))
        name = row["layer"]
        if not name or name in seen:
            faults.add(
                line, f"layer {name!r} is already on line {seen[name]}" if name else "no layer name"
            )
            continue
        seen[name] = line
        if SAMPLES in row:
            own = faults.integer(line, SAMPLES, row[SAMPLES], least=1)
            if samples not in (None, own):
                faults.add(line, f"{SAMPLES} is {own}, and {samples} in the row before")
            samples = own
        builder = builder or GraphBuilder(path.stem, samples)
        seconds = [faults.quantity(line, key, row[key], "seconds") for key in CSV_COLUMNS[1:4]]
        size_bytes = [faults.integer(line, key, row[key], least=0) for key in CSV_COLUMNS[4:]]
        operator = Measured(seconds[0], seconds[1], seconds[2], size_bytes[0], size_bytes[1], name)
        previous = (builder.add(name, operator, *previous),)
    if builder is None:
        faults.add(None, "the table has no layers")
    faults.raise_if_any()
    assert builder is not None
    return builder.build()


def read_pipedream(path: Path, batch: int | None = None) -> Graph:
    """Read a PipeDream profile: nodes with times in milliseconds and sizes in bytes, then edges.

    Nodes called ``Input`` are inputs of the network, not layers. The profile does not split the
    backward time. All of it counts as the input gradient's, since a weight gradient that was not
    measured separately cannot be postponed.

    Raises
    ------
    FileError
        If the file is no valid profile. The message lists every fault.
    NetworkError
        If a batch is given, since measurements hold only for the batch with which they were made.
    """
    _refuse_batch(path, batch)
    import networkx as nx

    faults = Faults(path)
    layers: dict[str, Measured] = {}
    lines: dict[str, int] = {}
    inputs: list[str] = []
    edges: list[tuple[int, str, str]] = []
    for line, text in enumerate(read_text(path).splitlines(), 1):
        if not text.strip():
            continue
        if edge := _EDGE.fullmatch(text):
            edges.append((line, edge[1], edge[2]))
        elif node := _NODE.fullmatch(text.strip()):
            name = node["name"]
            if name in lines:
                faults.add(line, f"node {name!r} is already on line {lines[name]}")
                continue
            lines[name] = line
            if _INPUT.fullmatch(node["label"]):
                inputs.append(name)
            layers[name] = _node(faults, line, name, node["label"], node["numbers"])
        else:
            faults.add(
                line,
                "neither a node ('name -- what -- forward_compute_time=..., ...') nor an edge "
                f"('\\tname -- name'): {shown(text)}",
            )
    for line, source, target in edges:
        for name in (source, target):
            if name not in layers:
                faults.add(line, f"edge names node {name!r}, which is not defined")
    if not set(layers) - set(inputs):
        faults.add(None, "the profile has no layers")
    faults.raise_if_any()

    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(layers)
    graph.add_edges_from((source, target) for _, source, target in edges)
    order = {name: i for i, name in enumerate(layers)}
    try:
        ordered = list(
            nx.lexicographical_topological_sort(graph, key=lambda n: (_number(n), order[n]))
        )
    except nx.NetworkXUnfeasible:
        cycle = [source for source, _ in nx.find_cycle(graph)]
        raise FileError(path, [f"the layers form a cycle: {' -> '.join(cycle[:8])}"]) from None
    return _graph(path, ordered, layers, set(inputs), edges)


def _graph(
    path: Path,
    ordered: list[str],
    layers: dict[str, Measured],
    inputs: set[str],
    edges: list[tuple[int, str, str]],
) -> Graph:
    sources: dict[str, dict[str, None]] = {}
    for _, source, target in edges:
        sources.setdefault(target, {})[source] = None
    builder = GraphBuilder(path.parent.name if path.stem == "graph" else path.stem, None)
    for name in ordered:
        if name in inputs:
            if sources.get(name):
                raise FileError(path, [f"input {name!r} has an edge into it"])
            builder.input(name, layers[name].output(()))
        else:
            builder.add(name, layers[name], *sources.get(name, ()))
    return builder.build()


def _node(faults: Faults, line: int, name: str, label: str, text: str) -> Measured:
    values: dict[str, str] = {}
    first, *further = text.split(" -- ")
    for part in first.split(", "):
        key, _, value = (each.strip() for each in part.partition("="))
        if key not in _GRAPH_KEYS or key in values:
            what = "is there twice" if key in values else "is not read; leave it out"
            faults.add(line, f"node {name!r}: {shown(key)} {what}")
        values[key] = value
    for part in further:  # the stage in which PipeDream had the layer
        if not _STAGE.fullmatch(part.strip()):
            faults.add(line, f"node {name!r}: {shown(part.strip())} is not read; leave it out")
    numbers = []
    for key in _GRAPH_KEYS:
        if key not in values:
            faults.add(line, f"node {name!r} has no {key}")
            numbers.append(0.0)
            continue
        unit = "ms" if key.endswith("time") else "bytes"
        pieces = values[key].strip().removeprefix("[").removesuffix("]").split(";")
        numbers.append(sum(faults.quantity(line, key, piece, unit) for piece in pieces))
    forward_ms, backward_ms, output_bytes, weight_bytes = numbers
    return Measured(
        forward_ms / 1e3, backward_ms / 1e3, 0.0, round(output_bytes), round(weight_bytes), label
    )


def _number(name: str) -> int:
    """The number at the end of a node's name, which gives the order of nodes in profiles."""
    digits = re.search(r"\d{1,18}$", name)
    return int(digits[0]) if digits else 0


def _refuse_batch(path: Path, batch: int | None) -> None:
    if batch is not None:
        raise NetworkError(
            f"{path}: a profile holds for the batch it was measured with; --batch does not apply"
        )
