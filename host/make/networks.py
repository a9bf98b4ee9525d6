"""Functions that load a network for a number of samples: as it is, trained, INT8, or frozen."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fpgapipe.errors import UserError
from fpgapipe.host.backends.calibration import calibrated
from fpgapipe.host.data.data import load_data
from fpgapipe.host.weights.parameters_file import with_weights
from fpgapipe.network.graph import Graph, NetworkError
from fpgapipe.network.load import load_network
from fpgapipe.network.parameter_groups import freeze

Load = Callable[[int], Graph]
"""Function that gives a network for a number of samples."""


class Loader:
    """Loads a network for a number of samples, and keeps the results; made by `loader`.

    A copy by pickle loads the network itself, once in each process, and equals this one.

    Parameters
    ----------
    network : str or callable
        Its name or file, or a function that gives the graph for a number of samples.
    key : str
        Differs from that of every other loader, since the file of a network may change.
    """

    def __init__(self, network: str | Load, key: str) -> None:
        self.network, self.key = network, key
        self._graphs: dict[int, Graph] = {}

    @property
    def name(self) -> str:
        """The name or file of the network."""
        return self.network if isinstance(self.network, str) else self._any().name

    def __call__(self, samples: int) -> Graph:
        """Load the network.

        Raises
        ------
        UserError
            If the batch of the network is fixed and is not that number, with the reason.
        """
        if samples not in self._graphs:
            self._graphs[samples] = self._load(samples)
        return self._graphs[samples]

    def micro_batches(self, batch: int, asked: int | None) -> int | None:
        """Number of micro-batches of a batch, or None if the planner may choose it.

        Parameters
        ----------
        batch : int
            Samples of a mini-batch.
        asked : int or None
            Number that the user wants.

        Raises
        ------
        UserError
            If the batch of the network is fixed, and `batch` is no multiple of it.
        """
        if asked is not None or batch == 1:
            return asked
        try:
            for samples in (2 if batch > 2 else 1, batch):  # the verification takes 2
                self(samples)
        except UserError:
            fixed = self._own_batch()
            if fixed and batch % fixed == 0:
                return batch // fixed
            self(batch)  # it says what is wrong
        return None

    def _own_batch(self) -> int | None:
        """Samples of a batch if nobody says how many; None if the network does not load then."""
        try:
            return self._any().batch
        except UserError:
            return None

    def _any(self) -> Graph:
        """The network for as many samples as it has by itself, or else for one."""
        if isinstance(self.network, str):
            return load_network(self.network)
        return next(iter(self._graphs.values()), None) or self(1)

    def _load(self, samples: int) -> Graph:
        if not isinstance(self.network, str):
            return self.network(samples)
        try:
            graph = load_network(self.network, samples)
        except UserError as error:
            graph = self._any()
            if graph.batch is None:
                raise
            if graph.batch != samples:
                advice = f"take a --batch of micro-batches that have {graph.batch} samples each"
                raise UserError(f"{error}; or {advice}") from None
        if graph.batch is None:
            raise UserError(f"{self.network} is a profile: use it with 'fpgapipe plan --profile'")
        return graph

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Loader) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> tuple[Any, ...]:
        return _copied_loader, (self.network, self.key)


@functools.lru_cache(maxsize=4)
def _copied_loader(network: str | Load, key: str) -> Loader:
    return Loader(network, key)


def loader(network: str | Load) -> Loader:
    """Return a function that loads the network for a number of samples, and keeps the result."""
    return Loader(network, uuid.uuid4().hex)


def with_parameters(load: Load, file: str | None, batch: int) -> Load:
    """A function that gives the network with the parameters of a file, if one is named.

    Parameters
    ----------
    load : callable
        Gives the network for a number of samples.
    file : str or None
        A checkpoint, or a file of tensors with one for each parameter.
    batch : int
        Samples for which the network is loaded.
    """
    if file is None:
        return load
    whole = with_weights(Path(file), load(batch))
    return lambda count: replace(load(count), values=whole.values, state=whole.state, source=None)


def with_integers(load: Load, data: str | None, batch: int, percentile: float = 100.0) -> Load:
    """A function that gives the INT8 network, if samples are named that its scales come from.

    Parameters
    ----------
    load : callable
        Gives the network for a number of samples.
    data : str or None
        As for ``fpgapipe run --data``.
    batch : int
        Samples for which the network is loaded.
    percentile : float
        Percentage of the elements of activations that are within the scale; others saturate.

    Raises
    ------
    UserError
        If the network comes without values for some parameters.
    """
    if data is None:
        return load
    graph = load(batch)
    names = {each.name for layer in graph.layers.values() for each in layer.parameters}
    missing = sorted(names - graph.values.keys())
    if missing:
        raise UserError(
            f"{graph.name} must be trained before it is quantised, and has no values for "
            f"{', '.join(missing[:3])}: name a checkpoint, or a file, with --parameters"
        )
    samples = load_data(data, graph).train
    values = {name: graph.values[name] for name in names}
    return calibrated(load, values, samples, percentile=percentile)


def frozen_loader(load: Load, patterns: Sequence[str]) -> Load:
    """A function that loads a network as another does, with some of its parameters frozen.

    It raises a UserError if a pattern matches none, or if nothing is left to learn.
    """

    @functools.cache
    def frozen(samples: int) -> Graph:
        try:
            return freeze(load(samples), tuple(patterns))
        except NetworkError as error:
            raise UserError(str(error)) from None

    return frozen
