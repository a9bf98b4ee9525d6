"""Offers of other packages: found by name, imported late, and refused in full sentences."""

import dataclasses
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from package_cases import target_of
from plugin_cases import install, left_out

from fpgapipe import plugins
from fpgapipe.boards.address import Address
from fpgapipe.boards.cluster import chain_of
from fpgapipe.boards.library import load_board
from fpgapipe.errors import FileError, UserError
from fpgapipe.host.backends.torch_reference import run_layer
from fpgapipe.host.cli.main import cli
from fpgapipe.host.package.flow import FLOWS
from fpgapipe.host.package.package import package_files
from fpgapipe.host.package.targets import check_boards
from fpgapipe.host.transports.opening import (
    TRANSPORTS,
    backend_names,
    open_device,
    transports_of,
)
from fpgapipe.lowering.tiling.kernel import Tensor
from fpgapipe.lowering.units.layers.function_units import formula_of
from fpgapipe.lowering.units.registry import unit_of
from fpgapipe.network.graph import NetworkError
from fpgapipe.network.graph_json import from_json, to_json
from fpgapipe.network.load import load_network
from fpgapipe.network.operators import Conv
from fpgapipe.network.operators.others import load_operators, operator_class
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.pricing.price_cache import remembered
from fpgapipe.partition.strategies.registered import STRATEGIES
from fpgapipe.plugins import Registry, instance_of, subclass_of

FOLDER = Path(__file__).parents[2] / "examples" / "clusters"
GROUP = "fpgapipe.test_colours"


def offer(site, value, text="", *, name="teal", package="fpgapipe_test_paint"):
    install(site, package, {"colours.py": text}, {GROUP: {name: value}})


COLOURS: Registry[int] = Registry(
    GROUP, "colour", {"red": 1, "digits": "string:digits", "big": "sys:maxsize"}, instance_of(int)
)
TEAL = "fpgapipe_test_paint.colours:TEAL"


def test_own_things_come_first_and_late():
    assert COLOURS.names() == ["red", "digits", "big"]
    assert COLOURS["red"] == 1
    assert COLOURS["big"] == sys.maxsize


def test_another_package_adds_one(site):
    offer(site, TEAL, "TEAL = 7")
    assert COLOURS.names() == ["red", "digits", "big", "teal"]
    assert "teal" in COLOURS
    assert "fpgapipe_test_paint" not in sys.modules
    assert COLOURS["teal"] == 7


def test_a_change_of_another_package_makes_answers_anew(site, tmp_path, monkeypatch):
    monkeypatch.setenv("FPGAPIPE_CACHE", str(tmp_path))
    monkeypatch.delenv("FPGAPIPE_ANSWERS")
    numbers = iter((7, 8))
    offer(site, TEAL, "TEAL = 7")
    assert remembered({"what": "teal"}, lambda: next(numbers)) == 7
    assert remembered({"what": "teal"}, lambda: next(numbers)) == 7
    (site / "fpgapipe_test_paint" / "colours.py").write_text("TEAL = 8")
    plugins._digest_of_others.cache_clear()  # as in another process
    assert remembered({"what": "teal"}, lambda: next(numbers)) == 8


def test_there_is_none_of_that_name():
    assert "reed" not in COLOURS
    with pytest.raises(UserError) as raised:
        COLOURS["reed"]
    assert str(raised.value) == "there is no colour named 'reed'; did you mean 'red'?"
    with pytest.raises(UserError, match=r"named 'blue'; the colours are red, digits, big$"):
        COLOURS["blue"]


OFFERED = f"the package fpgapipe_test_paint offers 'teal = {TEAL}' in {GROUP}, which "
MEND = "; mend the package fpgapipe_test_paint, or uninstall it"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("1 / 0", "cannot be imported: ZeroDivisionError: 'division by zero'"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit: '3'"),
        ("raise BaseException('odd')", "cannot be imported: BaseException: 'odd'"),
        ("class E(Exception):\n  __str__ = None\nraise E", "cannot be imported: E: 'no text'"),
        ("TEAL = 'blue'", "is str, not a int"),
        ("class TEAL: pass", "is the class TEAL, not a int"),
    ],
)
def test_a_broken_package(site, text, what):
    offer(site, TEAL, text)
    with pytest.raises(UserError) as raised:
        COLOURS["teal"]
    assert str(raised.value) == OFFERED + what + MEND
    assert COLOURS["red"] == 1


def test_what_is_broken_is_left_out_where_all_are_gone_through(site):
    offer(site, TEAL, "raise SystemExit")
    with left_out() as found:
        assert COLOURS.usable() == ["red", "digits", "big"]
        assert COLOURS.usable() == ["red", "digits", "big"]
    assert found == [f"left out: {OFFERED}cannot be imported: SystemExit: ''{MEND}"]


def test_ctrl_c_is_no_fault_of_a_package(site):
    offer(site, TEAL, "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        COLOURS.usable()


@dataclasses.dataclass(frozen=True)
class Shade:
    darker: Callable[[int], int]
    steps: Callable[[], Iterator[int]]


SHADES: Registry[Shade] = Registry(GROUP, "shade", {}, instance_of(Shade, darker=int))
SHADE = """
from test_plugins import Shade
def darker(value):
    {darker}
def steps():
    yield 1
    {steps}
TEAL = Shade(darker, steps)
"""


@pytest.mark.parametrize(
    ("darker", "what"),
    [
        ("return 1 / value", "fails: ZeroDivisionError: 'division by zero'"),
        ("import sys; sys.exit(4)", "fails: SystemExit: '4'"),
        ("return 'black'", "fails: TypeError: 'it returns str, not int'"),
    ],
)
def test_functions_that_fail(site, darker, what):
    offer(site, TEAL, SHADE.format(darker=darker, steps="raise BaseException('white')"))
    with pytest.raises(UserError) as raised:
        SHADES["teal"].darker(0)
    assert str(raised.value) == OFFERED + what + MEND
    with pytest.raises(UserError, match=r"which fails: BaseException: 'white'"):
        list(SHADES["teal"].steps())


def test_functions_that_work(site):
    offer(site, TEAL, SHADE.format(darker="return value - 1", steps="yield 2"))
    assert SHADES["teal"].darker(7) == 6
    assert list(SHADES["teal"].steps()) == [1, 2]


def test_an_object_that_is_not_there(site):
    offer(site, TEAL)
    with pytest.raises(UserError, match=r"which cannot be imported: AttributeError: .*TEAL"):
        COLOURS["teal"]


def test_a_value_that_names_nothing(site):
    offer(site, "not a module")
    with pytest.raises(UserError, match=r"offers 'teal = not a module' in .*cannot be imported"):
        COLOURS["teal"]


def test_a_name_that_is_taken(site):
    offer(site, TEAL, "TEAL = 7", name="red")
    with pytest.raises(UserError) as raised:
        COLOURS["red"]
    assert str(raised.value) == (
        f"the package fpgapipe_test_paint offers 'red = {TEAL}' in {GROUP}, and fpgapipe has a "
        "colour of that name; rename the entry point, or uninstall the package fpgapipe_test_paint"
    )


def test_two_packages_with_one_name(site):
    offer(site, TEAL, "TEAL = 7")
    offer(site, "fpgapipe_test_dye.colours:TEAL", "TEAL = 8", package="fpgapipe_test_dye")
    with pytest.raises(UserError) as raised:
        COLOURS["teal"]
    both = {
        f"the colour 'teal' is offered by the package {one} and the package {other}; uninstall all "
        "but one of them"
        for one, other in (
            ("fpgapipe_test_paint", "fpgapipe_test_dye"),
            ("fpgapipe_test_dye", "fpgapipe_test_paint"),
        )
    }
    assert str(raised.value) in both


def test_subclasses():
    kinds = Registry(
        GROUP, "kind", {"bool": "builtins:bool", "str": "builtins:str"}, subclass_of(int)
    )
    assert kinds["bool"] is bool
    with pytest.raises(TypeError, match=r"^is the class str, not a subclass of int$"):
        kinds["str"]


MODELLED = """
from fpgapipe.host.driver.transport import BoardTransport
from fpgapipe.host.transports.modelled import ModelledTransport

class Modelled(ModelledTransport, BoardTransport):
    name = {name!r}

    @classmethod
    def open(cls, address, board, folder):
        way = object.__new__(cls)
        way.opened = (cls.name, address.device, board.name)
        return way if address.device != "none" else None
"""


@pytest.mark.parametrize("name", ["bench", "model"])
def test_a_transport(site, name):
    value = "fpgapipe_test_wire.wire:Modelled"
    files = {"wire.py": MODELLED.format(name=name)}
    install(site, "fpgapipe_test_wire", files, {"fpgapipe.transports": {name: value}})
    if name == "model":
        with pytest.raises(UserError, match=r"which has the name of a backend without boards; me"):
            transports_of(name, FOLDER / "u280-chain.yaml")
        return
    assert backend_names()[-1] == name
    opened = open_device(name, "card", Address(device="7"), load_board("u280"), site)
    assert opened.opened == (name, "7", "u280")
    with pytest.raises(UserError, match=r"which fails: TypeError: 'it returns NoneType, n"):
        open_device(name, "card", Address(device="none"), load_board("u280"), site)
    assert name in CliRunner().invoke(cli, ["run", "--help"]).output


def test_a_transport_of_another_name(site):
    entries = {"fpgapipe.transports": {"bench": "fpgapipe_test_wire.wire:Modelled"}}
    install(site, "fpgapipe_test_wire", {"wire.py": MODELLED.format(name="wire")}, entries)
    with pytest.raises(UserError, match=r"which has the name 'wire' of its own; mend the package"):
        TRANSPORTS["bench"]


def test_every_transport_of_its_own_can_be_imported():
    assert [TRANSPORTS[name].name for name in TRANSPORTS.own] == list(TRANSPORTS.own)


def test_a_frontend(site):
    text = """
from fpgapipe.network.frontends.frontend import Frontend
from fpgapipe.network.zoo import built_in

def read(path, batch):
    return built_in(path.read_text(), batch or 1)

NAMED = Frontend("the name of a network", read)
"""
    entries = {"fpgapipe.frontends": {"named": "fpgapipe_test_named.named:NAMED"}}
    install(site, "fpgapipe_test_named", {"named.py": text}, entries)
    (site / "net.NAMED").write_text("lenet5")
    graph = load_network(str(site / "net.NAMED"), 3)
    assert (graph.name, graph.batch) == ("lenet5", 3)
    (site / "net.nope").touch()
    with pytest.raises(FileError, match=r" profile\), \.named \(the name of a network\)$"):
        load_network(str(site / "net.nope"))


def test_a_package(site):
    text = """
from fpgapipe.host.package.flow import Flow

def files(target):
    yield "core.v", target.verilog

FLOW = Flow(files, lambda target: "how\\n", lambda target: "Tools: none.", tried="Untried.")
"""
    entries = {"fpgapipe.packages": {"cells": "fpgapipe_test_cells.cells:FLOW"}}
    install(site, "fpgapipe_test_cells", {"cells.py": text}, entries)
    check_boards(chain_of(load_board("arty-a7-100t"), 1), "cells")
    with pytest.raises(UserError) as raised:
        check_boards(chain_of(load_board("u280"), 2), "cells")
    assert str(raised.value) == (
        "u280-0 cannot be packaged: it has a link at qsfp/0, and --package cells has none; build "
        "for one device"
    )
    names = dict(package_files(FLOWS["cells"], target_of("u55c", ())))
    assert names["core.v"] == target_of("u55c", ()).verilog
    assert "Untried." in names["README.md"]
    assert names["README.md"].endswith("\nThe device has no links.\nhow\n")
    assert "cells" in CliRunner().invoke(cli, ["build", "--help"]).output


MARK = """
from dataclasses import dataclass
from typing import ClassVar
from fpgapipe.network.operators import Operator
from fpgapipe.network.operators.others import adds

@adds
@dataclass(frozen=True)
class {name}(Operator):
    kind: ClassVar[str] = "{kind}"
    strength: int = 1

    def output(self, inputs):
        return inputs[0]
"""


def test_networks_with_an_operator_are_written_and_read(site):
    text = MARK.format(name="Mark", kind="mark")
    entries = {"fpgapipe.operators": {"mark": "fpgapipe_test_mark.mark"}}
    install(site, "fpgapipe_test_mark", {"mark.py": text}, entries)
    load_operators()
    kind = sys.modules["fpgapipe_test_mark.mark"].Mark
    net = Network("marked", 2)
    net.linear(net.add("mark", kind(3), net.image(3)), 4, name="logits")
    graph = net.build()
    again = from_json(to_json(graph))
    assert again.layers["mark"].operator == kind(3)


def test_an_operator_that_no_package_adds_cannot_be_written(site):
    text = MARK.format(name="Mark", kind="mark").replace("@adds\n", "")
    install(site, "fpgapipe_test_mark", {"mark.py": text}, {})
    kind = importlib.import_module("fpgapipe_test_mark.mark").Mark
    net = Network("marked", 2)
    net.linear(net.add("mark", kind(3), net.image(3)), 4, name="logits")
    with pytest.raises(NetworkError, match=r"a network with Mark cannot be written, since no "):
        to_json(net.build())


@pytest.mark.parametrize(("name", "kind"), [("Conv", "other"), ("Other", "conv")])
def test_an_operator_that_there_is_already(site, name, kind):
    text = MARK.format(name=name, kind=kind)
    entries = {"fpgapipe.operators": {"mark": "fpgapipe_test_mark.mark"}}
    install(site, "fpgapipe_test_mark", {"mark.py": text}, entries)
    with left_out() as found:
        load_operators()
        load_operators()
    assert len(found) == 1
    assert "ValueError: 'there is an operator Conv (conv) already'; mend the package" in found[0]
    assert operator_class("Conv") is Conv


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("host.backends.torch_reference import computes as register; kind = Conv", "reference"),
        ("network.frontends.torch.torch_registry import handles as register; kind = 'relu.default'",
         "translation"),
        ("network.frontends.onnx.onnx_translation import handles as register; kind = 'Relu'",
         "translation"),
    ],
)  # fmt: skip
def test_what_an_operator_has_already(site, call, what):
    importlib.import_module("fpgapipe.network.frontends.torch.torch_program")
    importlib.import_module("fpgapipe.network.frontends.onnx.onnx_model")
    text = "from fpgapipe.network.operators import Conv\n"
    text += f"from fpgapipe.{call}\nregister(kind)(print)\n"
    entries = {"fpgapipe.operators": {"mark": "fpgapipe_test_again.again"}}
    install(site, "fpgapipe_test_again", {"again.py": text}, entries)
    with left_out() as found:
        load_operators()
    assert len(found) == 1
    assert re.search(rf"ValueError: .* has a {what} already", found[0])


@pytest.mark.parametrize("returns", ["17", "(1, 2)", "(None, None, None)"])
def test_a_strategy_that_returns_something_else(site, returns):
    text = (
        "from fpgapipe.partition.strategies.strategy import Strategy\n"
        f"def search(*given):\n    return {returns}\nODD = Strategy(search)\n"
    )
    entries = {"fpgapipe.strategies": {"odd": "fpgapipe_test_odd.odd:ODD"}}
    install(site, "fpgapipe_test_odd", {"odd.py": text}, entries)
    with pytest.raises(
        UserError,
        match=r"^the package fpgapipe_test_odd offers .* fails: TypeError: .*it returns .*, "
        "not a tuple of Plan, Timeline, and LayerwisePlan or None",
    ):
        STRATEGIES["odd"].search(None, "", None)


ODD_OPERATOR = """
from dataclasses import dataclass
from typing import ClassVar
from fpgapipe.host.backends.torch_reference import computes
from fpgapipe.lowering.units.layers.function_units import by_formula
from fpgapipe.lowering.units.registry import runs
from fpgapipe.lowering.units.unit import Unit
from fpgapipe.network.operators import Operator
from fpgapipe.network.operators.others import adds

@adds
@dataclass(frozen=True)
class Odd(Operator):
    kind: ClassVar[str] = "odd"

    def output(self, inputs):
        return inputs[0]

class OddUnit(Unit):
    def backward(self, step, dy):
        pass

    def forward(self, step):
        return 17

@computes(Odd)
def reference(operator, parameters, inputs, training):
    return 17

@runs("odd")
def unit(layer, around):
    return 17

@by_formula("even")
def formula(operator):
    return 17

def fails():
    return 1 / 0
"""


def test_an_operator_whose_functions_return_something_else(site, cli, monkeypatch):
    """The package is named, in a message of one line, also for what fails in its own code."""
    entries = {"fpgapipe.operators": {"odd": "fpgapipe_test_odd.odd"}}
    install(site, "fpgapipe_test_odd", {"odd.py": ODD_OPERATOR}, entries)
    load_operators()
    module = sys.modules["fpgapipe_test_odd.odd"]
    layer = SimpleNamespace(name="x", op="odd", operator=module.Odd())
    begin = "^the package fpgapipe_test_odd offers 'odd = fpgapipe_test_odd.odd' in "
    with pytest.raises(UserError, match=f"{begin}.*, whose reference returns int, not Tensor or"):
        run_layer(layer, {}, [], training=False)
    with pytest.raises(UserError, match=f"{begin}.*, whose unit returns int, not Unit; mend"):
        unit_of(layer, None)
    with pytest.raises(UserError, match=f"{begin}.*, whose formula returns int, not Formula; mend"):
        formula_of(SimpleNamespace(kind="even"))
    with pytest.raises(UserError, match=f"{begin}.*, whose OddUnit.forward returns int, not Tens"):
        plugins.expected(17, Tensor, module.OddUnit(()).forward)

    def fails(*given, **options):
        module.fails()

    monkeypatch.setattr("fpgapipe.host.cli.main.cli.main", fails)
    code, out, err = cli("boards")
    assert (code, out) == (2, "")
    assert "fpgapipe_test_odd" in err
    assert "ZeroDivisionError: 'division by zero'" in err
    assert "Traceback" not in err


def test_what_fails_in_fpgapipe_is_no_packages_fault():
    with pytest.raises(ZeroDivisionError) as caught:
        1 / 0  # noqa: B018
    assert plugins.blamed(caught.value) is None
    assert plugins.expected(17, str, STRATEGIES.names) == 17
