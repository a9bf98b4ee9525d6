"""Kernels of the vector engine that are made once for all micro-batches, layers and stages.

Kernels that differ only in the names of their tensors have the same instructions, apart from
addresses in memory. Thus a kernel is made once for each shape, and renamed. Where random numbers
are drawn, kernels also differ in how many of them are skipped, which is added in the same way.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from fpgapipe.lowering.tiling.draw import Draw
from fpgapipe.lowering.tiling.kernel import Tensor, VectorKernel

MOST_KEPT = 512
"""Most kernels that are kept of each function; the oldest ones make room."""

_P = ParamSpec("_P")


def made_once(
    make: Callable[Concatenate[str, _P], VectorKernel],
) -> Callable[Concatenate[str, _P], VectorKernel]:
    """Let a function make each kernel once, whatever its tensors are called.

    The first argument of the function is the kernel's name. Tensors are among the other arguments,
    or in mappings or sequences among them. All arguments have to be values whose `repr` says all
    that they are; a function among them would be no such value. At most one of them is a `Draw`.
    """
    known: dict[str, VectorKernel] = {}

    @wraps(make)
    def found(name: str, /, *args: _P.args, **kwargs: _P.kwargs) -> VectorKernel:
        numbers: dict[str, str] = {}
        draws = [each for each in (*args, *kwargs.values()) if isinstance(each, Draw)]
        assert len(draws) <= 1, "a kernel draws from one sequence of random numbers"
        like: Any = [_numbered(each, numbers) for each in args]
        named: Any = {key: _numbered(each, numbers) for key, each in kwargs.items()}
        question = repr((like, named))
        assert " at 0x" not in question, "an argument does not say what it is"
        kernel = known.get(question)
        if kernel is None:
            try:
                kernel = make(name, *like, **named)
            except (ValueError, NotImplementedError):
                return make(name, *args, **kwargs)  # the message has the tensors' own names
            while len(known) >= MOST_KEPT:
                del known[next(iter(known))]
            known[question] = kernel
        names = {number: tensor for tensor, number in numbers.items()}
        return kernel.renamed(name, names, skipped=sum(each.skipped for each in draws))

    return found


def _numbered(value: Any, numbers: dict[str, str]) -> Any:
    """The value with tensors called by numbers, which those of one name share, and first draws."""
    if isinstance(value, Draw):
        return value.from_zero
    if isinstance(value, Tensor):
        number = numbers.setdefault(value.name, str(len(numbers)))
        return Tensor(number, value.shape, value.format)
    if isinstance(value, Mapping):
        return {key: _numbered(each, numbers) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_numbered(each, numbers) for each in value)
    return value
