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


def place_options(function: Callable[..., Any], default_devices: int = 1) -> Callable[..., Any]:
    """Give a sub-command ``--board``, ``--devices``, ``--nodes`` and ``--cluster``."""
    function = click.option(
        "--cluster",
        "cluster_file",
        metavar="FILE",
        help="File that says which boards there are and how they are cabled.",
    )(function)
    return _board_options(function, default_devices)


def _board_options(function: Callable[..., Any], default_devices: int) -> Callable[..., Any]:
    function = click.option(
        "--nodes",
        metavar="N",
        type=ranges.NODES,
        help="Cores of each board, each with a share of a die and memory of its own [default: 1].",
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
        if board is not None and devices is None:
            one_board = default_devices if nodes is None else 1
            devices = one_board if cluster_file is None else None
        cluster = chosen_cluster(board, devices, cluster_file, nodes)
        return function(*args, cluster=cluster, **kwargs)

    return run


def chosen_cluster(
    board: str | None, devices: int | None, cluster_file: str | None, nodes: int | None = None
) -> Cluster:
    """Return the cluster that the options select.

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
    return fpgapipe.chain_of(fpgapipe.load_board(board), devices or 1, nodes or 1)
