"""Writing of PyTorch modules as ONNX models, with weights that they are given."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from typing import TYPE_CHECKING, Any

from fpgapipe.network.graph import Graph, NetworkError
from fpgapipe.optional import require

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from fpgapipe.network.frontends.source import TorchSource


def exported_onnx(graph: Graph, source: TorchSource, tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Contents of an ONNX file of a module, as it computes in evaluation.

    Parameters
    ----------
    graph : Graph
        The network that was read from the module.
    source : TorchSource
    tensors : mapping of str to array
        The module's state; the module keeps it.

    Raises
    ------
    NetworkError
        If the state does not fit the module, or PyTorch cannot write the module.
    """
    torch = require("torch", "writing .onnx")
    require("onnxscript", "writing .onnx")
    module = source.module
    if source.fixed_training is not None:
        raise NetworkError(
            f"{graph.name} was exported already, in one mode; name a function that gives the module"
        )
    try:
        module.load_state_dict({name: torch.from_numpy(x.copy()) for name, x in tensors.items()})
    except RuntimeError as error:
        raise NetworkError(f"{graph.name}: {' '.join(str(error).split())[:400]}") from None
    module.eval()
    # The first axis is any number of samples, unless the module only takes some.
    sizes = tuple({0: torch.export.Dim.AUTO} if each.ndim else {} for each in source.inputs)
    try:
        with _quiet():
            try:
                program = torch.onnx.export(
                    module, source.inputs, dynamo=True, dynamic_shapes=sizes, verbose=False
                )
            except Exception:
                if (with_heads := _with_heads(torch, module, source.inputs, sizes)) is None:
                    raise
                program = torch.onnx.export(with_heads, dynamo=True, verbose=False)
        model: bytes = program.model_proto.SerializeToString()
    except Exception as error:  # errors of the exporter have no common base class
        cause: BaseException = error
        while cause.__cause__ is not None:  # the first one says what is wrong, the others where
            cause = cause.__cause__
        reason = " ".join(str(cause).split())[:400]
        raise NetworkError(f"{graph.name}: PyTorch cannot write it as ONNX: {reason}") from error
    return model


def _with_heads(torch: Any, module: Any, inputs: Any, sizes: Any) -> Any | None:
    """The module as a program whose attention has an axis of heads, which PyTorch's exporter needs.

    None if all attention has it already, or there is none.
    """
    attention = torch.ops.aten.scaled_dot_product_attention.default

    def one_head(q: Any, k: Any, v: Any, mask: Any = None, *rest: Any, **named: Any) -> Any:
        if q.ndim != 3:
            return NotImplemented
        if mask is not None and mask.ndim == 3:
            mask = mask.unsqueeze(1)
        q, k, v = (each.unsqueeze(1) for each in (q, k, v))
        return attention(q, k, v, mask, *rest, **named).squeeze(1)

    program = torch.export.export(module, inputs, dynamic_shapes=sizes, strict=False)
    lacks = any(
        node.target == attention and node.args[0].meta["val"].ndim == 3
        for node in program.graph.nodes
    )
    return program.run_decompositions({attention: one_head}) if lacks else None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the exporter says of its own code, and of packages that it misses, to itself."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
