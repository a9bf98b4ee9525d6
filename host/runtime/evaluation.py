"""Accuracy of a network: inference on one device, in the bit-exact model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.host.data.sample_checks import check_samples
from fpgapipe.host.runtime.training import Found
from fpgapipe.hw.hls_models.model.core import CoreModel
from fpgapipe.lowering.program.step import build_step
from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
from fpgapipe.network.logits import Logits
from fpgapipe.network.losses import count_of, labels_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from fpgapipe.host.backends.base import Values
    from fpgapipe.host.data.samples import Samples
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec
    from fpgapipe.network.graph import Graph
    from fpgapipe.network.losses import Loss


def filled_batches(samples: Samples, size: int) -> Iterator[tuple[Samples, int]]:
    """Batches of all samples in their order, each with the number of its samples that count.

    The last batch is filled up with copies of the last sample.
    """
    count = len(samples.labels)
    firsts = range(0, count, size)
    parts = (np.minimum(np.arange(first, first + size), count - 1) for first in firsts)
    for first, batch in zip(firsts, samples.read_ahead(parts), strict=True):
        yield batch, min(size, count - first)


def num_right(
    logits: NDArray[np.float32],
    labels: NDArray[np.integer],
    count: int,
    graph: Graph,
    output: str | None = None,
) -> int:
    """How many labels of the first `count` samples have the largest logit at their class."""
    return int((Logits.of(graph, output).predicted(logits) == labels)[:count].sum())


def rated(graph: Graph, loss: Loss) -> tuple[str, ...]:
    """Outputs that there are in evaluation and that have classes, which validation counts."""
    return tuple(name for name in graph.evaluated.outputs if loss.of(name).has_classes)


def found_of(found: Mapping[str, tuple[int, int]]) -> Found:
    """Labels that are found right and all labels, from those of each output."""
    return dict(found) if len(found) > 1 else next(iter(found.values()))


def plus(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Labels that are found right and all labels, of two batches together."""
    return one[0] + other[0], one[1] + other[1]


class Inference:
    """Counts the labels that a network finds right, on one device of the bit-exact model.

    Batch normalisation uses the running statistics, so the samples of a batch do not influence each
    other.

    Parameters
    ----------
    graph : Graph
        Network for a batch of any size; what only training computes is left out.
    core : CoreSpec
    samples : Samples
    options : StepOptions
        Options with which the network was trained.

    Raises
    ------
    UserError
        If the samples do not fit the network.
    """

    def __init__(
        self, graph: Graph, core: CoreSpec, samples: Samples, options: StepOptions | None = None
    ) -> None:
        options = options or StepOptions()
        check_samples(samples, graph, options.loss)
        activations = options.activations
        self._program = build_step(
            graph.evaluated, core, options=StepOptions(activations=activations, train=False)
        )
        self._samples = samples
        self._outputs = rated(graph, options.loss)

    def __call__(self, parameters: Values) -> Found:
        """Return the number of labels that are found right, and of all labels.

        A network with several outputs has both for each that has classes.
        """
        program = self._program
        model = CoreModel(program.core, program.image(parameters), repeats=True)
        model.scalars[:] = scalar_bits()
        assert program.graph.batch is not None
        found = dict.fromkeys(self._outputs, (0, 0))
        for batch, count in filled_batches(self._samples, program.graph.batch):
            program.set_batch(model.memory, batch.inputs(program.graph))
            model.run(program.instructions)
            results = program.results(model.memory)
            for name in self._outputs:
                labels = labels_of(batch.targets, name)
                right = num_right(results[name], labels, count, program.graph, name)
                found[name] = plus(found[name], (right, count_of(labels[:count])))
        return found_of(found)
