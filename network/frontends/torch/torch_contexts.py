"""Contexts in which a module of PyTorch is compared: its types, and what PyTorch gets wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


def normalised_plainly(batch_norm: Callable[..., Any], x: Any, *args: Any, **named: Any) -> Any:
    """Call one of PyTorch's batch normalisations so that its gradients are right.

    PyTorch 2.13 computes wrong gradients on a CPU where an image of one pixel, for example, has its
    axes in another order in memory, as views have. Here input and gradient have the usual order.
    """
    y = batch_norm(x.contiguous(), *args, **named)
    if y.requires_grad:
        y.register_hook(lambda dy: dy.contiguous())
    return y


@contextlib.contextmanager
def own_state(torch: Any, precision: str) -> Iterator[None]:
    """Set torch's default type, and restore it and the random state at the end.

    PyTorch's fast path, which gives zeros for positions that a mask hides, is off in between.
    """
    before = torch.get_default_dtype()
    fast = torch.backends.mha.get_fastpath_enabled()
    with torch.random.fork_rng(devices=[]):
        torch.set_default_dtype(getattr(torch, precision))
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.set_default_dtype(before)
            torch.backends.mha.set_fastpath_enabled(fast)


def in_precision(torch: Any, module: Any, dtype: Any) -> Any:
    """A context in which a module that asks for FP32 computes in another type.

    Attention and normalisations often do so; gradients that are zero in exact arithmetic would
    differ by FP32's rounding.

    RMS norms without an epsilon have that of the module's own element type: PyTorch takes the
    distance between 1 and the next number of the type in which it computes. Batch norms go by
    `normalised_plainly`.
    """
    from torch.overrides import TorchFunctionMode

    types = (each.dtype for each in module.parameters() if each.is_floating_point())
    epsilon = torch.finfo(next(types, torch.float32)).eps
    norms = (torch.nn.functional.rms_norm, torch.rms_norm, torch.ops.aten.rms_norm.default)
    batch_norms = (
        torch.nn.functional.batch_norm, torch.batch_norm, torch.ops.aten.batch_norm.default
    )  # fmt: skip

    def wider(value: Any) -> Any:
        return dtype if value is torch.float32 else value

    class InPrecision(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            given = {name: wider(value) for name, value in (kwargs or {}).items()}
            args = tuple(map(wider, args))
            if function is torch.Tensor.float:
                return args[0].to(dtype)
            if function in batch_norms:
                return normalised_plainly(function, *args, **given)
            if function not in norms:
                return function(*args, **given)
            names = ("input", "normalized_shape", "weight", "eps")
            given = {"weight": None, "eps": None, **dict(zip(names, args, strict=False)), **given}
            if given["eps"] is None:
                given["eps"] = epsilon
            return function(*(given[name] for name in names))

    return InPrecision()
