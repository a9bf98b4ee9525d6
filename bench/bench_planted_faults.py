"""Plants faults in the lowering, one after another, and says whether the shape classes find them.

Each fault replaces a few characters of a module of the lowering before it is imported: a pitch that
is ignored, another group's channels, padding of the wrong side, a sign, a tail of a block that is
read or left out, a sum in another order. Cases of ``bench_shape_classes.py`` of the units that the
fault is in run until one of them is wrong, or ends in an error.

Prints one JSON object: for each fault its kind, the case that found it, the cases until then and
the seconds. Exits with 1 if a fault was not found. ``--cases N`` takes at most so many cases for a
fault, ``--only WORD...`` the faults with one of the words in their names, and ``--none`` plants
nothing, so that the same cases must be right.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from multiprocessing.connection import Connection
from types import CodeType
from typing import Any

import torch  # what takes long to import is there before a process is forked for a fault

PRODUCTS = "fpgapipe.lowering.products."
UNITS = "fpgapipe.lowering.units."
KERNELS = "fpgapipe.lowering.kernels."


@dataclass(frozen=True)
class Fault:
    """A change of the lowering's source.

    Attributes
    ----------
    kind, name : str
    units : str
        Word in the names of the units whose cases are run.
    edits : tuple of (str, str, str)
        Module, the text that is replaced, which must be there once, and the text in its place.
    """

    kind: str
    name: str
    units: str
    edits: tuple[tuple[str, str, str], ...]


FAULTS = (
    Fault("pitch", "packed input read where it lies", "grouped", (
        (f"{UNITS}layers.matrix_parts", "offset = None if is_split else", "offset ="),
        (f"{PRODUCTS}conv_passes", "conv.is_packed and conv.x_channels != conv.cin", "False"))),
    Fault("pitch", "pitch of results ignored", "grouped", (
        (f"{PRODUCTS}conv", "return self.y_pitch or self.cout", "return self.cout"),)),
    Fault("pitch", "pitch of weights ignored", "matmul", (
        (f"{PRODUCTS}conv", "return self.w_pitch or self.taps * self.cin",
         "return self.taps * self.cin"),)),
    Fault("pitch", "rows of an input gradient without stride", "conv", (
        (f"{PRODUCTS}conv_passes", "(rows, vertical[0] * width * pixel)",
         "(rows, width * pixel)"),)),
    Fault("pitch", "copies with the pitch of the other tensor", "slice", (
        (f"{KERNELS}parts", "steps=(_bytes(x, LANES), source.pitches[0])",
         "steps=(_bytes(x, LANES), target.pitches[0])"),)),
    Fault("group", "weight of the first group", "grouped", (
        (f"{UNITS}layers.grouped_unit",
         "Part.of(weight, group, groups),\n                Part.of_columns(sums",
         "Part.of(weight, 0, groups),\n                Part.of_columns(sums"),)),
    Fault("group", "gradients to the groups in reverse", "grouped", (
        (f"{UNITS}layers.grouped_unit", "Part.of_columns(images, group, groups)",
         "Part.of_columns(images, groups - 1 - group, groups)"),)),
    Fault("group", "transposed: weight of the first group", "conv_transpose", (
        (f"{UNITS}layers.transposed_unit", "Part.of(tensor, group, groups)",
         "Part.of(tensor, 0, groups)"),)),
    Fault("pad", "left and right exchanged, reference too", "conv", (
        (f"{UNITS}layers.conv_of_layer", "pad=(top, left, bottom, right)",
         "pad=(top, right, bottom, left)"),)),
    Fault("pad", "forward: right for left", "conv", (
        (f"{PRODUCTS}conv_passes", "conv.dilation[1], -conv.pad[1], conv.kernel[1]",
         "conv.dilation[1], -conv.pad[3], conv.kernel[1]"),)),
    Fault("pad", "weight gradient: bottom for top", "conv", (
        (f"{PRODUCTS}conv_weight", "conv.dilation[0], -conv.pad[0], conv.kernel[0]",
         "conv.dilation[0], -conv.pad[2], conv.kernel[0]"),)),
    Fault("pad", "input gradient: far for near", "conv", (
        (f"{PRODUCTS}conv_passes", "conv.dilation[axis], conv.pad[axis]",
         "conv.dilation[axis], conv.pad[axis + 2]"),)),
    Fault("pad", "depthwise: columns by the padding of rows", "depthwise", (
        (f"{KERNELS}depthwise", "_check(window, x, weight, y)\n    (down, across), (top, left) = "
         "window.stride, window.pad[:2]", "_check(window, x, weight, y)\n    (down, across), "
         "(top, left) = window.stride, window.pad[1::-1]"),)),
    Fault("sign", "difference: gradient of what is taken away", "sub", (
        (f"{UNITS}layers.broadcast_unit", 'self._function == "sub" and number',
         'self._function == "sub" and 1 - number'),)),
    Fault("sign", "logarithm of softmax: sum added", "log_softmax", (
        (f"{KERNELS}softmax", "settings: dict[str, Any] = {**MINUS_Y, **times(scale)}",
         "settings: dict[str, Any] = {**MINUS_Y, **times(-scale)}"),)),
    Fault("tail of a block", "lanes beyond the channels count", "conv", (
        (f"{PRODUCTS}conv_parts", "return size - (ceil_div(size, unit) - 1) * unit",
         "return unit if size > unit else size"),)),
    Fault("tail of a block", "last part of a block left out", "linear", (
        (f"{PRODUCTS}conv_parts", "return ceil_div(tail(size), rows)",
         "return max(tail(size) // rows, 1)"),
        (f"{PRODUCTS}conv_parts", "* (BLOCK // rows) + ceil_div(tail(size), rows)",
         "* (BLOCK // rows) + max(tail(size) // rows, 1)"))),
    Fault("tail of a block", "last vector of copied rows left out", "concat", (
        (f"{KERNELS}parts", "op = VectorOp(\n                (-(-counts[1] // LANES), counts[0]),",
         "op = VectorOp(\n                (max(counts[1] // LANES, 1), counts[0]),"),)),
    Fault("order of a sum", "slices of the reduction from the last on", "conv", (
        (f"{PRODUCTS}conv_passes",
         "return pieces if whole == channels else [*pieces, (whole, channels)]",
         "return (pieces if whole == channels else [*pieces, (whole, channels)])[::-1]"),)),
    Fault("order of a sum", "sums begin anew in the second slice", "conv", (
        (f"{PRODUCTS}conv_product", "index == 0, index == len(parts) - 1",
         "index <= 1, index == len(parts) - 1"),)),
)  # fmt: skip


def plant(fault: Fault) -> None:
    """Change the source of modules that are not imported yet.

    Raises
    ------
    RuntimeError
        If a module is there already, or does not have the text once.
    """
    edits = {module: [each[1:] for each in fault.edits if each[0] == module]
             for module, *_ in fault.edits}  # fmt: skip
    if there := sorted(edits.keys() & sys.modules.keys()):
        raise RuntimeError(f"{', '.join(there)} must be imported after the fault is planted")
    plain = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        if fullname not in edits:
            return plain(self, fullname)
        source = self.get_source(fullname)
        assert source is not None
        for before, after in edits[fullname]:
            if source.count(before) != 1:
                raise RuntimeError(f"{fullname} must have {before!r} once")
            source = source.replace(before, after)
        return compile(source, self.get_filename(fullname), "exec", dont_inherit=True)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


def search(fault: Fault, cases: int, answers: Connection, *, planted: bool) -> None:
    """Plant a fault and run cases until one is wrong; sends what was found."""
    if planted:
        plant(fault)
    from shape_classes import draw, judge

    torch.set_num_threads(1)
    found: dict[str, Any] = {"found": False}
    number = 0
    for number in range(cases):
        verdict = judge(draw(0, number, fault.units), twin=fault.kind == "order of a sum")
        if verdict["verdict"] in ("WRONG", "TRACEBACK"):
            found = {"found": True} | {name: verdict[name] for name in ("case", "verdict")}
            found["reason"] = verdict["reason"][-300:]
            break
    answers.send(found | {"cases": number + 1})


def tried(fault: Fault, cases: int, *, planted: bool = True) -> dict[str, Any]:
    """Search for a fault in a process of its own."""
    begin = time.perf_counter()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=search, args=(fault, cases, theirs), kwargs={"planted": planted}
    )
    process.start()
    theirs.close()
    try:
        found = ours.recv()
    except EOFError:
        found = {"found": True, "verdict": "DIED", "cases": 0}
    process.join()
    head = {"fault": fault.name, "kind": fault.kind}
    return head | found | {"seconds": round(time.perf_counter() - begin, 1)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=60, help="most cases for a fault")
    parser.add_argument("--only", nargs="+", default=[""], help="faults with this in their names")
    parser.add_argument("--none", action="store_true", help="plant nothing")
    given = parser.parse_args(arguments)
    chosen = [fault for fault in FAULTS if any(each in fault.name for each in given.only)]
    found = []
    for fault in chosen:
        each = tried(fault, given.cases, planted=not given.none)
        found.append(each)
        print(json.dumps(each), file=sys.stderr, flush=True)
    count = sum(each["found"] for each in found)
    print(json.dumps({"faults": len(found), "found": count, "each": found}, indent=2))
    return 0 if count == (0 if given.none else len(chosen)) else 1


if __name__ == "__main__":
    sys.exit(main())
