"""Nodes are looked up in a placement: they are not counted by stages, nor neighbours by index."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("host", "partition", "lowering", "sim_tb", "boards")

NODES = {
    "cores", "device_names", "devices", "memories", "nodes", "node_layers", "programs",
    "wires",
}  # fmt: skip
"""Names of sequences with an element for each node, or each wire."""

LOOKUPS = {"fastest_link", "link", "link_ends", "links_between", "wire"}
"""Functions that take nodes, or places of devices."""

COUNTS = {"devices", "nodes"}
"""Words in the names of numbers of nodes."""


def last_name(node: ast.expr) -> str:
    """The last name of ``a``, ``b.a``, ``b.a[...]`` or ``b.a(...)``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    if isinstance(node, ast.Call):
        return last_name(node.func)
    return node.id if isinstance(node, ast.Name) else ""


def is_beside(node: ast.AST) -> bool:
    """Whether an expression is another plus or minus one, or the smaller or larger of two."""
    if isinstance(node, ast.Slice):
        ends = [each for each in (node.lower, node.upper) if each is not None]
        return any(map(is_beside, ends)) or ast.unparse(node) in ("1:", ":-1")
    if isinstance(node, ast.Subscript):
        return is_beside(node.slice)
    if isinstance(node, ast.Call) and last_name(node.func) in {"max", "min"}:
        return any(map(is_beside, node.args)) or len(node.args) > 1
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Add | ast.Sub)
        and isinstance(node.right, ast.Constant)
        and node.right.value in (1, 2)
        and not isinstance(node.left, ast.Call)
    )


def is_of_stages(name: str, value: ast.AST) -> bool:
    """Whether a number of nodes, by its name, is the length of a sequence of stages."""
    return (
        bool(COUNTS & set(name.split("_")))
        and isinstance(value, ast.Call)
        and last_name(value.func) == "len"
        and last_name(value.args[0]) == "stages"
    )


def faults_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines in which a neighbour is an index beside, or nodes are counted by stages."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and last_name(node.value) in NODES:
            if is_beside(node.slice):
                yield node.lineno, "the node, or the wire, of the next number"
        elif isinstance(node, ast.Call):
            name = last_name(node.func)
            if name == "pairwise" and last_name(node.args[0]) in NODES | {"stages"}:
                yield node.lineno, "each node and the next one"
            if name in LOOKUPS and any(map(is_beside, node.args)):
                yield node.lineno, "a link to the node of the next number"
        named = []
        if isinstance(node, ast.Call):
            named = [(each.arg or "", each.value) for each in node.keywords]
        elif isinstance(node, ast.Assign):
            named = [(last_name(each), node.value) for each in node.targets]
        if any(is_of_stages(*each) for each in named):
            yield node.lineno, "as many nodes as stages"


@pytest.mark.parametrize("folder", FOLDERS)
def test_placements_say_which_nodes_are_neighbours(folder):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, fault in faults_of(ast.parse(path.read_text()))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "plan.nodes[index + 1]",
        "build.cores[max(index - 1, 0) : index + 1]",
        "nodes[index : index + 2]",
        "wires[min(maker, user)]",
        "pairwise(plan.nodes)",
        "zip(nodes, nodes[1:])",
        "placement.link(stage, stage - 1)",
        "cluster.fastest_link(places[i], places[i + 1])",
        "devices = len(plan.stages)",
        "Request(num_devices=len(stages))",
    ],
)
def test_each_kind_of_fault_is_found(line):
    assert list(faults_of(ast.parse(line)))
