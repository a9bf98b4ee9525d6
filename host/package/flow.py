"""The flows that package builds: those of vendors, LiteX, and what other packages offer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fpgapipe.errors import UserError
from fpgapipe.plugins import Registry, instance_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fpgapipe.boards.schema import Board
    from fpgapipe.host.package.target import Target

PHY_PROTOCOL, PIN_PROTOCOL = "aurora-64b66b", "gpio"
"""The protocols of links that are packaged: over transceivers, and over plain pins."""

TRIED_BY_VENDOR = """**Nothing here has been run by a vendor's tool or on a board**: the
scripts were run with commands that check their names, order and arguments."""


@dataclass(frozen=True)
class Flow:
    """A flow: it turns the core of a device into a folder that other tools make a bitstream of.

    Attributes
    ----------
    files : callable
        Yields names and texts of the files of a `Target`, but for its README.
    how_to : callable
        Returns the README's sections on how to build and reach a device.
    tools : callable
        Returns the README's line on the tools that a device needs.
    protocol : str or None
        Protocol of the links that it has a PHY for: `PHY_PROTOCOL` and `PIN_PROTOCOL`, whose ports
        the board's file describes. None if it packages devices without links alone.
    tried : str
        What of it was tried, for the README.
    key : str
        Key in the ``packaging`` of a board's file, which boards must have. If it is empty, any
        board can be packaged, and only the attributes of `Target` that need no such values are
        used.
    backend : str
        Transport that reaches its devices (``--backend``); "" if there is none.
    has_nodes : bool
        Whether it packages boards of several nodes, which are the target's `Target.nodes`.
    """

    files: Callable[[Target], Iterable[tuple[str, str]]]
    how_to: Callable[[Target], str]
    tools: Callable[[Target], str]
    protocol: str | None = None
    tried: str = TRIED_BY_VENDOR
    key: str = ""
    backend: str = ""
    has_nodes: bool = False

    def check(self, device: str, board: Board, *, is_share: bool = False) -> None:
        """Check whether the file of a device's board has what the flow needs.

        Parameters
        ----------
        device : str
        board : Board
        is_share : bool
            Whether the device is one of several nodes of the board.

        Raises
        ------
        UserError
            If it does not; the message says what is missing.
        """
        if is_share and not self.has_nodes:
            raise UserError(
                f"{device} cannot be packaged: it shares its {board.name} with other nodes, and "
                "this package has one core a board; build with one node, or take another --package"
            )
        if not self.key:
            return
        if board.packaging is None:
            raise UserError(
                f"{device} cannot be packaged: the file of board {board.name} lacks the key "
                f"'packaging' with 'tools' and '{self.key}' (docs/boards.md)"
            )
        if board.packaging.flow != self.key:
            raise UserError(
                f"{device} cannot be packaged for {self.key}: board {board.name} is packaged for "
                f"{board.packaging.flow}; use --package {board.packaging.flow}"
            )


def vendor_tools(target: Target) -> str:
    """The README's line on the releases of a vendor's tools that know the board."""
    tools = target.packaging.tools
    first = (
        f"from {tools.first} on" if tools.first else "from a release that no source at hand says"
    )
    last = f", up to {tools.last}, which is the last that has the board" if tools.last else ""
    return f"Tools that know the board: {first}{last}."


FLOWS: Registry[Flow] = Registry(
    "fpgapipe.packages",
    "package",
    {
        "vitis": "fpgapipe.host.package.vitis:FLOW",
        "vivado": "fpgapipe.host.package.vivado:FLOW",
        "pynq": "fpgapipe.host.package.pynq:FLOW",
        "litex": "fpgapipe.host.package.litex:FLOW",
    },
    instance_of(Flow, how_to=str, tools=str),
)
"""The flows by the names that ``--package`` takes."""
