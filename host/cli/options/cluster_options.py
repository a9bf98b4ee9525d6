"""The options that select the boards of a command."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

import fpgapipe
from fpgapipe.errors import UserError
from fpgapipe.host.cli.options import ranges
from fpgapipe.host.cli.options.completion import boards_that_begin

if TYPE_CHECKING:
    from fpgapipe.boards.cluster import Cluster


def place_options(
    function: Callable[..., Any], default_devices: int = 1, *, searches: bool = False
) -> Callable[..., Any]:
    """Give a sub-command ``--board``, ``--devices``, ``--nodes`` and ``--cluster``.

    With `searches`, ``--nodes`` may be ``auto``.
    """
    function = click.option(
        "--cluster",
        "cluster_file",
        metavar="FILE",
        help="File that says which boards there are and how they are cabled.",
    )(function)
    return _board_options(function, default_devices, searches=searches)


def _board_options(
    function: Callable[..., Any], default_devices: int, *, searches: bool = False
) -> Callable[..., Any]:
    function = click.option(
        "--nodes",
        metavar="N|auto" if searches else "N",
        type=ranges.NumberOrAuto(ranges.NODES) if searches else ranges.NODES,
        help="Cores of each board, each with a share of a die and memory of its own"
        f"{'; auto for as many as are fastest' if searches else ''} [default: 1].",
    )(function)
    function = click.option(
        "--devices",
        metavar="N",
        type=ranges.DEVICES,
        help=f"Boards of this kind, cabled in a chain [default: {default_devices}].",
    )(function)
    return click.option(
        "--board",
        shell_complete=boards_that_begin,
        metavar="NAME|FILE",
        help="Kind of board; 'fpgapipe boards' lists the built-in ones.",
    )(function)


def cluster_options(function: Callable[..., Any], default_devices: int = 1) -> Callable[..., Any]:
    """Do as `place_options`, for a function below ``@command`` with an argument ``cluster``.

    It gets the :class:`~fpgapipe.boards.cluster.Cluster` that they select.
    """
    return place_options(_selecting(function, default_devices), default_devices)


def with_cluster(function: Callable[..., Any], default_devices: int = 1) -> Callable[..., Any]:
    """Do as `cluster_options`, for a function that declares ``cluster_file`` itself."""
    return _board_options(_selecting(function, default_devices), default_devices)


def _selecting(function: Callable[..., Any], default_devices: int) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(
        *args: Any,
        board: str | None,
        devices: int | None,
        nodes: int | None,
        cluster_file: str | None,
        **kwargs: Any,
    ) -> Any:
        cluster = chosen_cluster(board, devices, cluster_file, nodes, default_devices)
        return function(*args, cluster=cluster, **kwargs)

    return run


def chosen_cluster(
    board: str | None,
    devices: int | None,
    cluster_file: str | None,
    nodes: int | None = None,
    default_devices: int = 1,
) -> Cluster:
    """Return the cluster that the options select; boards with several nodes are one by default.

    Raises
    ------
    UserError
        If they select none or contradict each other, or a file has faults.
    """
    if cluster_file is not None:
        given = {"--board": board, "--devices": devices, "--nodes": nodes}
        for extra, value in given.items():
            if value is not None:
                raise UserError(f"a cluster file says which boards there are, so leave out {extra}")
        return fpgapipe.load_cluster(cluster_file)
    if board is None:
        rest = "" if devices is None else ", and not --devices alone"
        raise UserError(f"give a cluster file, or --board and --devices{rest}")
    default = default_devices if nodes is None else 1
    return fpgapipe.chain_of(fpgapipe.load_board(board), devices or default, nodes or 1)
