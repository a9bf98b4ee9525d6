"""One plan, one core, one way to lower and to price: what there is one of is counted."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

import fpgapipe
from fpgapipe.host.cli.main import cli
from fpgapipe.partition.schedule.schedule_kinds import SCHEDULES
from fpgapipe.partition.strategies.registered import STRATEGIES

ROOT = Path(__file__).parents[2]
PLANNING = ("network", "lowering", "partition", "boards", "host")
FOLDERS = (*PLANNING, "hw", "sim_tb")

ARRAYS = {"CoreSpec", "DatapathSpec", "SystolicSpec"}
"""Classes that say rows and columns of an array: the core, and blocks that it is made of."""

COMMON_WORDS = {"channel", "data", "filter", "spatial"}
"""Names of strategies that other things have, too."""


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(path.read_text())


def trees(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """Paths and syntax trees of the modules of some folders."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), parsed(path)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """Functions and methods."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def last_name(node: ast.expr) -> str:
    """The last name of ``a`` or ``b.a``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def test_one_function_makes_programs():
    """All else that returns programs of a whole plan is handed them, or reads them."""
    found = [
        f"{path}: {function.name}"
        for path, tree in trees("lowering")
        for function in functions(tree)
        if function.returns and ast.unparse(function.returns) == "PipelineProgram"
    ]
    assert found == ["lowering/lower.py: build_pipeline"]


def test_one_function_prices_plans():
    """Other rooms know `price_plan`, and the function that calls it with larger scratchpads."""
    room = "fpgapipe.partition.pricing."
    priced = {
        function.name
        for _, tree in trees("partition/pricing")
        for function in functions(tree)
        if function.returns
        and {"Plan", "Timeline"} <= set(map(last_name, ast.walk(function.returns)))
        and function.args.args[0].arg == "plan"
    }
    assert "price_plan" in priced
    asked = {
        alias.name
        for path, tree in trees(*PLANNING)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(room)
        for alias in node.names
        if not path.startswith("partition/pricing/")
    }
    assert asked & priced == {"price_plan", "price_with_room"}


def fields_of(node: ast.ClassDef) -> set[str]:
    """Names of a class's fields, and of its constructor's parameters."""
    found = {last_name(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            found |= {arg.arg for arg in (*each.args.args, *each.args.kwonlyargs)}
    return found


def test_one_description_of_a_core():
    """No other class has an array of its own, nor a core's memory in cycles."""
    for path, tree in trees(*FOLDERS):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                fields = fields_of(node)
                assert not {"rows", "cols"} <= fields or node.name in ARRAYS, path
                assert "memory_bytes_per_cycle" not in fields or node.name == "NodeSpec", path


def sums_of_array(tree: ast.AST) -> Iterator[int]:
    """Lines that add rows and columns, as the cycles of an array's loading and filling do."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            added = {last_name(node.left), last_name(node.right)}
            if added == {"rows", "cols"}:
                yield node.lineno


def test_the_array_alone_adds_its_rows_and_columns():
    found = {path for path, tree in trees(*FOLDERS) for _ in sums_of_array(tree)}
    assert found == {"hw/hls_models/spec/systolic.py"}
    assert list(sums_of_array(ast.parse("core.cols + core.rows")))


def named_in(node: ast.AST, names: frozenset[str]) -> set[str]:
    """Those of some names that are strings in an expression."""
    return {
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and each.value in names
    }


def lists_of(tree: ast.AST, names: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Lines that list several of some names, or compare something with one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict):
            keys = node.keys if isinstance(node, ast.Dict) else node.elts
            found = {each for key in keys if key for each in named_in(key, names)}
            if len(found) > 1:
                yield node.lineno, "a list of names"
        elif isinstance(node, ast.Compare) and named_in(node, names):
            yield node.lineno, "a comparison with a name"
        elif isinstance(node, ast.Match) and named_in(node, names):
            yield node.lineno, "a case of a name"


@pytest.mark.parametrize(
    ("names", "rooms"),
    [
        (frozenset(SCHEDULES.names()), ("partition/schedule/",)),
        (
            frozenset(STRATEGIES.names()) - COMMON_WORDS,
            ("partition/strategies/", "partition/oracle/", "host/report/pages/oracle_plot.py"),
        ),
    ],
    ids=["schedules", "strategies"],
)
def test_kinds_are_registered_not_listed(names, rooms):
    """Kinds are asked for properties; the oracle has formulas of its own, and a plot of them."""
    found = [
        f"{path}:{line}: {what}"
        for path, tree in trees(*FOLDERS)
        if not path.startswith(rooms)
        for line, what in lists_of(tree, names)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line", ["a == 'gpipe'", "a in ('gpipe', b)", "['gpipe', '1f1b']", "{'gpipe': 1, '1f1b': 2}"]
)
def test_each_kind_of_list_is_found(line):
    assert list(lists_of(ast.parse(line), frozenset({"gpipe", "1f1b"})))


SET_UP = {"agent", "bench", "completion", "doctor", "new"}
"""Commands that serve, measure or set up a machine."""

CALLS = {"boards": "list_boards", "cluster": "describe_cluster"}
"""Calls that are named otherwise than their commands."""


def test_every_command_is_a_call():
    commands = set(cli.list_commands(click.Context(cli)))
    assert commands > SET_UP
    for name in commands - SET_UP:
        assert callable(getattr(fpgapipe, CALLS.get(name, name))), name
