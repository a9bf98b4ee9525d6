"""Which tensors of an ONNX model the parameters of layers are, and how each layer reads them.

A model may read one initializer in several places and in several ways: as it is and transposed, or
as a scale and as a variance. What is learned is one parameter, which lies in memory in one way; all
its readers share it. So the first reader decides nothing: if two ways differ, the translation
begins again with the tensor *apart*, as a layer of its own that is read through layers of
transposition and the like, and only those layers own it that read it as it is. What is not learned,
such as running statistics, becomes a parameter of its own for each role in which it is read.

A way of reading is where each element of the parameter lies in the tensor's memory: translations
take views of it (transposed, sliced), which numpy describes by first byte, shape and strides.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fpgapipe.network.frontends.builder import Unsupported
from fpgapipe.network.frontends.source import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable

    from numpy.typing import NDArray

    from fpgapipe.network.frontends.builder import Own
    from fpgapipe.network.frontends.onnx.onnx_constants import Constants

MOST_WORK = 10_000
"""Steps after which two views count as overlapping."""


class Made(NamedTuple):
    """A parameter's values that are made of a tensor's.

    Attributes
    ----------
    name : str
        The tensor's name in the model.
    value : array
        The parameter's values.
    part : array
        View of the tensor's values of which they are made.
    how : str
        What is done with the part, such as ``times 2``; equal words mean equal values.
    back : callable
        Makes values of the part of values of the parameter.
    """

    name: str
    value: NDArray[np.generic]
    part: NDArray[np.generic]
    how: str
    back: Callable[[NDArray[Any]], NDArray[Any]]


Value = tuple[str, "NDArray[np.generic]"] | Made
"""A parameter's values: a tensor's name with a view of its values, or what is made of them."""


class ReadTwoWays(Exception):
    """A tensor is learned, and read in several ways.

    Parameters
    ----------
    tensors : collection of str
        Initializers that must be read apart.
    """

    def __init__(self, tensors: Collection[str]) -> None:
        super().__init__()
        self.tensors = frozenset(tensors)


@dataclass(frozen=True)
class _Way:
    """Where the elements of a parameter lie in a tensor's memory.

    Attributes
    ----------
    tensor : str
    place : tuple
        First byte, shape, and bytes from one index to the next along each axis.
    how : str
        What is done with the elements; empty if nothing is.
    """

    tensor: str
    place: tuple[int, tuple[int, ...], tuple[int, ...]]
    how: str = ""


class Readings:
    """The readings of a translation.

    Parameters
    ----------
    constants : Constants
        Tensors whose values are known.
    apart : collection of str
        Initializers that are read in several ways.
    """

    def __init__(self, constants: Constants, apart: Collection[str]) -> None:
        self._constants = constants
        self._apart = frozenset(apart)
        self._learned: dict[str, list[tuple[_Way, NDArray[np.generic]]]] = {}  # by initializer

    def is_apart(self, name: str) -> bool:
        """Whether a tensor is made of an initializer that is read in several ways."""
        return not self._apart.isdisjoint(self._constants.origins(name))

    def can_own(self, name: str, view: NDArray[np.generic]) -> bool:
        """Whether a layer can own what it learns, a view of a tensor's values."""
        return not self.is_apart(name) or self._is_plain(self._way(name, view))

    def can_own_each(self, *values: tuple[str, NDArray[np.generic]]) -> bool:
        """Whether a layer can own several tensors, each as a parameter of its own."""
        origins = [self._constants.origins(name) for name, _ in values]
        all_differ = len(frozenset[str]().union(*origins)) == sum(map(len, origins))
        return all_differ and all(self.can_own(*each) for each in values)

    def key(self, role: str, value: Value, *, learned: bool) -> Hashable:
        """Key that is equal for two parameters if they are one.

        Parameters
        ----------
        role : str
            Role of the parameter in its layer.
        value : Value
        learned : bool
            Whether it is learned.

        Raises
        ------
        ReadTwoWays
            If other layers learn the tensor and read it in another way.
        Unsupported
            If they do so, and it is apart already.
        """
        name = value[0]
        if self._constants.get(name) is None:  # numbers of the translation itself
            return name
        part, how = (value.part, value.how) if isinstance(value, Made) else (value[1], "")
        way = self._way(name, part, how)
        if not learned:
            return role, way
        if self.is_apart(name) and not self._is_plain(way):
            raise Unsupported(
                f"its {role} is {name!r} in another arrangement than that in which other nodes "
                "read it, and both would be learned; give it an initializer of its own"
            )
        origins = self._constants.origins(name)
        for origin in origins:
            known = self._learned.setdefault(origin, [])
            if any(other != way and _overlap(other, their, way, part) for other, their in known):
                raise ReadTwoWays(origins)
            known.append((way, part))
        return way

    def place(self, value: Value, order: tuple[int, ...]) -> Place | None:
        """Where the values of a parameter of an `order` lie; None if no tensor has them."""
        if self._constants.get(value[0]) is None:
            return None
        part, back = (value.part, value.back) if isinstance(value, Made) else (value[1], None)
        way = self._way(value[0], part)
        return Place(way.tensor, *way.place, order, back)

    def own(self, value: Value) -> Own | None:
        """The tensor that a parameter is as a whole, and the order in which its axes are read.

        None if the parameter is a part of a tensor, or is made of one.
        """
        if isinstance(value, Made) or self._constants.get(value[0]) is None:
            return None
        name, view = value
        way = self._way(name, view)
        whole = self._constants.get(way.tensor)
        assert whole is not None
        if self._is_plain(way):
            return way.tensor, ()
        if self._constants.origins(way.tensor) != {way.tensor} or view.ndim != whole.ndim:
            return None
        for order in permutations(range(view.ndim)):
            turned = whole.transpose(order)
            if way.place == (0, turned.shape, turned.strides):
                return way.tensor, order
        return None

    def _way(self, name: str, part: NDArray[np.generic], how: str = "") -> _Way:
        """How a view of a tensor's values is read; that of an initializer if it is a view of it."""
        first, end = _bounds(part)
        for tensor in (*sorted(self._constants.origins(name)), name):
            whole = self._constants.get(tensor)
            assert whole is not None
            begin, limit = _bounds(whole)
            if begin <= first and end <= limit and part.dtype == whole.dtype:
                return _Way(tensor, (first - begin, part.shape, part.strides), how)
        raise AssertionError(f"a parameter is made of {name!r}, but it is not said how")

    def _is_plain(self, way: _Way) -> bool:
        """Whether an initializer is read as it is."""
        whole = self._constants.get(way.tensor)
        assert whole is not None
        is_own = self._constants.origins(way.tensor) == {way.tensor}
        return is_own and way == _Way(way.tensor, (0, whole.shape, whole.strides))


def _bounds(view: NDArray[np.generic]) -> tuple[int, int]:
    """First address of an array, and the one behind its last."""
    reach = [(size - 1) * step for size, step in zip(view.shape, view.strides, strict=True)]
    first = view.__array_interface__["data"][0]
    return first + sum(min(each, 0) for each in reach), first + view.itemsize + sum(
        max(each, 0) for each in reach
    )


def _overlap(one: _Way, view: NDArray[np.generic], other: _Way, part: NDArray[np.generic]) -> bool:
    """Whether two ways have elements in common, or may have."""
    if one.tensor != other.tensor:
        return True
    try:
        return np.shares_memory(view, part, max_work=MOST_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
