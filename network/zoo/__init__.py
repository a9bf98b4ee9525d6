"""The built-in networks, with one file for each family."""

import importlib
from collections.abc import Callable

from fpgapipe.errors import nearest
from fpgapipe.network.graph import Graph, NetworkError
from fpgapipe.network.operators.tensors import ShapeError

NETWORKS = {
    "digits-cnn": "classic.digits_cnn",
    "resnet-mini": "small.resnet_mini",
    "vgg-mini": "small.vgg_mini",
    "lenet5": "classic.lenet5",
    "alexnet": "classic.alexnet",
    "vgg16": "classic.vgg16",
    "resnet18": "resnet.resnet18",
    "resnet50": "resnet.resnet50",
    "resnet152": "resnet.resnet152",
    "inception_v3": "inception.inception_v3",
    "mobilenet_v2": "mobilenet.mobilenet_v2",
    "gnmt8": "gnmt.gnmt8",
    "gnmt16": "gnmt.gnmt16",
    "cosmoflow": "classic.cosmoflow",
    "bert_base": "transformer.bert_base",
    "vit_b": "transformer.vit_b",
    "gpt2_small": "transformer.gpt2_small",
    "char-gpt": "transformer.char_gpt",
    "char-lstm": "recurrent.char_lstm",
}
"""Module and function of each network; a function takes a batch size and returns a `Graph`."""


def _plain(name: str) -> str:
    """A name without case, dashes, underscores and dots, which people write differently."""
    return "".join(c for c in name.lower() if c.isalnum())


def find(name: str) -> str | None:
    """The built-in network of a name in any spelling (``ResNet-50``); None if there is none."""
    wanted = _plain(name)
    return next((known for known in NETWORKS if _plain(known) == wanted), None)


def built_in(name: str, batch: int = 1) -> Graph:
    """Build one of `NETWORKS` for a batch size.

    Raises
    ------
    NetworkError
        If there is no network of that name, or the batch is not positive.
    """
    known = find(name)
    if known is None:
        raise NetworkError(
            f"no built-in network {name!r}{nearest(name, NETWORKS)} (there are "
            f"{', '.join(NETWORKS)})"
        )
    module, function = NETWORKS[known].split(".")
    build: Callable[[int], Graph] = getattr(
        importlib.import_module(f"fpgapipe.network.zoo.{module}"), function
    )
    try:
        return build(batch)
    except ShapeError as error:  # the batch is so large that the input exceeds MAX_ELEMENTS
        raise NetworkError(f"{known}: {error}") from None
