"""The comparison of an imported network with its source, for commands that build it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from fpgapipe.network.graph import Graph


def verify_network(
    load: Callable[[int], Graph], batch: int, micro_batches: int | None, *, train: bool
) -> None:
    """Refuse a network that differs from its source; print what was compared.

    A batch of two samples is enough, unless the network has a fixed batch.

    Parameters
    ----------
    load : callable
        Loads the network for a number of samples.
    batch : int
    micro_batches : int or None
        Micro-batches of a mini-batch, if they were asked for.
    train : bool
        Whether it is to be trained.
    """
    import importlib.util

    from fpgapipe.errors import UserError

    try:
        graph = load(min(2, batch))
    except UserError:
        graph = load(batch // (micro_batches or 1))
    if graph.source is None:
        return
    if importlib.util.find_spec("torch") is None:
        print("not verified: that needs torch (pip install 'fpgapipe[torch]')")
        return
    from fpgapipe.host.backends.verification import verified

    print(verified(graph, train=train))
