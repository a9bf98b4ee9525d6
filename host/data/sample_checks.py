"""Checks that samples fit a network, and their digest."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.host.data.rows import Rows, extremes
from fpgapipe.host.data.samples import Wanted, shape_text
from fpgapipe.network.losses import CROSS_ENTROPY, Loss, count_of, labels_of

if TYPE_CHECKING:
    from fpgapipe.host.data.samples import Samples
    from fpgapipe.network.graph import Graph


def digest_of(samples: Samples) -> str:
    """SHA-256 of all inputs and labels, with their types and shapes; of files, their contents."""
    digest = hashlib.sha256()
    several = [each for name, each in sorted(samples.of_outputs.items())]
    for values in (samples.images, *samples.others, *(several or [samples.labels])):
        digest.update(f"{values.dtype} {values.shape} ".encode())
        own = values.digest() if isinstance(values, Rows) else np.ascontiguousarray(values).data
        digest.update(own)
    return digest.hexdigest()


def check_samples(samples: Samples, graph: Graph, loss: Loss = CROSS_ENTROPY) -> None:
    """Refuse samples that do not fit a network and its loss.

    Raises
    ------
    UserError
        If shapes or labels do not fit the network.
    """
    wanted = Wanted.of(graph, loss)
    given = (samples.images, *samples.others)
    if len(given) != len(wanted.inputs):
        raise UserError(f"{graph.name} takes {len(wanted.inputs)} inputs, not {len(given)}")
    for values, each in zip(given, wanted.inputs, strict=True):
        if values.shape[1:] != each.shape:
            named = f" as {each.name}" if wanted.several else ""
            raise UserError(
                f"{graph.name} takes samples of {shape_text(each.shape)}{named}, not "
                f"{shape_text(values.shape[1:])}"
            )
        if len(values) != len(samples.images):
            raise UserError(
                f"{graph.name} takes as many samples of each input, not {len(samples.images)} and "
                f"{len(values)}"
            )
        tried = extremes(values)
        if each.indices is not None:
            bad = tried[(tried < 0) | (tried >= each.indices)]
            if bad.size or values.dtype.kind not in "iu":
                what = bad[0] if bad.size else values.dtype
                raise UserError(
                    f"tokens must be whole numbers in 0..{each.indices - 1}, those of "
                    f"{graph.name}, not {what}"
                )
        if each.mask is not None:
            wrong = each.mask.wrong(tried)
            if len(wrong) or values.dtype.kind not in "biu":
                what = tried[tuple(wrong[0])] if len(wrong) else values.dtype
                raise UserError(
                    f"input {each.name} of {graph.name} must be {each.mask.text}, not {what}"
                )
    for own in wanted.labels:
        try:
            labels = labels_of(samples.of_outputs or samples.labels, own.output)
        except ValueError as error:
            raise UserError(f"{graph.name}: {error}") from None
        own.check(labels, graph.name, len(samples.images))


def labels_that_count(samples: Samples, graph: Graph, loss: Loss) -> dict[str, int]:
    """Labels of each output that are not ignored; none where it has targets."""
    return {
        output: count_of(labels_of(samples.targets, output)) if own.has_classes else 0
        for output, own in loss.of_each(graph).items()
    }
