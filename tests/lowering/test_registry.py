"""The registry of units, and that all who ask about layers that run together ask it."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
from plugin_cases import install, left_out

from fpgapipe.lowering.program.boundary import stages_of
from fpgapipe.lowering.units import registry
from fpgapipe.lowering.units.layers.step_units import ActivationUnit
from fpgapipe.lowering.units.network_units import layers_together, refusals_of, units_of
from fpgapipe.lowering.units.registry import runs
from fpgapipe.network.operators import Operator
from fpgapipe.network.zoo import built_in
from fpgapipe.network.zoo.layers import Network
from fpgapipe.partition.cost.work import fused_layers


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_MAKERS", dict(registry._MAKERS))


@dataclass(frozen=True)
class Odd(Operator):
    """An operator that no unit runs."""

    kind: ClassVar[str] = "odd"

    def output(self, inputs):
        return inputs[0]


def clipped():
    net = Network("clipped", 2)
    x = net.add("clip", Odd(), net.linear(net.image(3), 5, name="fc"))
    net.linear(x, 4, name="logits")
    return net.build()


def test_an_operator_gets_a_unit():
    graph = clipped()
    assert [str(each) for each in refusals_of(graph, train=False)] == [
        "layer 'clip': the core has no odd"
    ]
    assert layers_together(graph) == [("fc",), ("clip",), ("logits",)]
    asked = []

    @runs("odd")
    def absolute(layer, around):
        asked.append((layer.name, around.only_reader(layer.name).name, around.number(layer)))
        return ActivationUnit((layer,))

    assert [unit.name for unit in units_of(graph)] == ["fc", "clip", "logits"]
    assert set(asked) == {("clip", "logits", 1)}


def test_an_operator_has_one_unit():
    with pytest.raises(ValueError, match=r"^operator 'conv' has a unit already$"):
        runs("odd", "conv")(lambda layer, around: None)


ODD_UNIT = """
from fpgapipe.lowering.units.layers.step_units import ActivationUnit
from fpgapipe.lowering.units.registry import runs

runs({name!r})(lambda layer, around: ActivationUnit((layer,)))
"""


def test_other_packages_register_units(site):
    files, entries = {"odd.py": ODD_UNIT.format(name="odd")}, {"odd": "fpgapipe_test_odd.odd"}
    install(site, "fpgapipe_test_odd", files, {"fpgapipe.operators": entries})
    assert [unit.name for unit in units_of(clipped())] == ["fc", "clip", "logits"]


def test_a_package_with_a_unit_that_there_is_already(site):
    files, entries = {"odd.py": ODD_UNIT.format(name="conv")}, {"odd": "fpgapipe_test_taken.odd"}
    install(site, "fpgapipe_test_taken", files, {"fpgapipe.operators": entries})
    with left_out() as found:
        assert units_of(built_in("lenet5", 1))
    assert found == [
        "left out: the package fpgapipe_test_taken offers 'odd = fpgapipe_test_taken.odd' in "
        "fpgapipe.operators, which cannot be imported: ValueError: \"operator 'conv' has a unit "
        'already"; mend the package fpgapipe_test_taken, or uninstall it'
    ]


@pytest.mark.parametrize("name", ["resnet18", "vgg16", "digits-cnn", "gnmt8"])
def test_planner_and_lowering_group_alike(name):
    graph = built_in(name, 1)
    groups = layers_together(graph)
    assert sorted(each for names in groups for each in names) == sorted(graph.layers)
    fused = fused_layers(graph)
    assert fused == {each: names[0] for names in groups for each in names[1:]}
    assert groups == [tuple(each.name for each in unit.layers) for unit in units_of(graph)]


def test_every_cut_between_units_can_be_lowered():
    graph = built_in("resnet18", 1)
    groups = layers_together(graph)
    assert any(len(names) == 3 for names in groups)  # normalisation, residual sum and ReLU
    for end in range(1, len(groups)):
        sides = groups[:end], groups[end:]
        parts = [[name for names in side for name in names] for side in sides]
        stages = stages_of(graph, parts, train=True)
        found = [[layer.name for unit in stage.units for layer in unit.layers] for stage in stages]
        assert found == parts
