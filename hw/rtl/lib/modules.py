"""Blocks that are Verilog modules of their own, generated once however often they are used.

Amaranth elaborates a component anew for each of its instances, and a design as a whole. A block
that is a module of its own is generated apart from the design that has it: once, and by whoever has
time, since the modules do not depend on each other. `fpgapipe.hw.rtl.verilog` does so.

A block joins where it is used, by `own_module`, or, if it is small and everywhere, by `instance_of`
in its own ``elaborate``.
"""

from typing import Any, NamedTuple

from amaranth.hdl import ClockSignal, Instance, ResetSignal
from amaranth.lib.wiring import In


class Block(NamedTuple):
    """A module that a design has instances of: what a platform's ``add_module`` gets.

    Attributes
    ----------
    name : str
        Name of the module.
    kind : type
        Class of the component; ``kind(spec)`` makes it.
    spec : object
    has_platform : bool
        Whether the component is elaborated for the platform, so that there can be modules in it, or
        for None.
    """

    name: str
    kind: type
    spec: Any
    has_platform: bool


def makes_modules(platform):
    """Whether a platform takes modules, as that of `fpgapipe.hw.rtl.verilog` does.

    Amaranth's own platforms do not, nor is there one in proofs or where Amaranth converts a
    component by itself: then every block is a part of the design.
    """
    return hasattr(platform, "add_module")


def own_module(component, name):
    """Make a component an instance of its own module: ``m.submodules.x = own_module(x, "x")``.

    On a platform that takes no modules it stays a part of the design.

    Parameters
    ----------
    component : wiring.Component
        ``type(component)(component.spec)`` makes another one like it. It has the one clock domain
        ``sync``, and does nothing to other parts of the design but through its ports.
    name : str
        Name of the module; it stands for the class and the spec.

    Returns
    -------
    wiring.Component
        `component`.
    """
    elaborate = component.elaborate

    def instance(platform):
        if not makes_modules(platform):
            return elaborate(platform)
        return _instance(component, name, platform, has_platform=True)

    component.elaborate = instance
    return component


def instance_of(component, name, platform):
    """Instance of a component's module, for the component's ``elaborate`` to return.

    Parameters
    ----------
    component : wiring.Component
        As for `own_module`; elaborated with None as its platform.
    name : str
        Name of the module; it stands for the class and the spec.
    platform
        Its ``add_module`` gets the `Block`.
    """
    return _instance(component, name, platform, has_platform=False)


def _instance(component, name, platform, has_platform):
    platform.add_module(Block(name, type(component), component.spec, has_platform))
    ports = {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
    for path, member, value in component.signature.flatten(component):
        direction = "i" if member.flow == In else "o"
        ports[f"{direction}_{'__'.join(map(str, path))}"] = value
    return Instance(name, **ports)
