"""Blocks that are Verilog modules of their own, converted once however often they are used.

Amaranth elaborates a component again for each of its instances, and converts a design as a whole. A
block that is a module of its own is converted apart from the design that contains it: once, and in
any process, since the modules do not depend on each other. `fpgapipe.hw.rtl.verilog` does so.

The user of a block makes it a module by `own_module`. A small block that is used in many places
does so itself, by `instance_of` in its ``elaborate``.
"""

from typing import Any, NamedTuple

from amaranth.hdl import ClockSignal, Instance, ResetSignal
from amaranth.lib.wiring import In


class Block(NamedTuple):
    """A module that a design has instances of; the argument of a platform's ``add_module``.

    Attributes
    ----------
    name : str
        Name of the module.
    kind : type
        Class of the component; ``kind(spec)`` makes the component.
    spec : object
        Argument of `kind`; it has a hash.
    has_platform : bool
        Whether the component is elaborated for the platform, so that it can contain other modules.
        Otherwise it is elaborated for None.
    """

    name: str
    kind: type
    spec: Any
    has_platform: bool


def makes_modules(platform):
    """Whether a platform accepts modules, as the one of `fpgapipe.hw.rtl.verilog` does.

    Amaranth's own platforms do not, and there is no platform in proofs or if Amaranth converts a
    component by itself. Then every block is a part of the design.
    """
    return hasattr(platform, "add_module")


def own_module(component, name):
    """Turn a component into an instance of its own module: ``m.submodules.x = own_module(x, "x")``.

    On a platform that accepts no modules, it stays a part of the design.

    Parameters
    ----------
    component : wiring.Component
        The component. ``type(component)(component.spec)`` makes another one like it. Its only
        clock domain is ``sync``, and it acts on the rest of the design through its ports alone.
    name : str
        Name of the module, which must identify the class and the spec.

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
    """Return an instance of a component's module, which the component's ``elaborate`` returns.

    Parameters
    ----------
    component : wiring.Component
        The same as for `own_module`. It is elaborated for the platform None.
    name : str
        Name of the module, which must identify the class and the spec.
    platform
        The platform, whose ``add_module`` gets the `Block`.
    """
    return _instance(component, name, platform, has_platform=False)


def _instance(component, name, platform, has_platform):
    platform.add_module(Block(name, type(component), component.spec, has_platform))
    ports = {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
    for path, member, value in component.signature.flatten(component):
        direction = "i" if member.flow == In else "o"
        ports[f"{direction}_{'__'.join(map(str, path))}"] = value
    return Instance(name, **ports)
