"""Functions that run as plain Python, and as machine code where numba is installed.

Such a function is written once, in the part of Python that numba compiles. It is decorated with
`compilable`, which leaves it as it is, so that short work needs no compiler and a debugger can
follow it. `machine_code` compiles it together with all that it calls. Its arguments are tables:
arrays for machine code, and lists for plain Python, which is faster with lists.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import zlib
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])

_COMPILABLE: set[Any] = set()
"""All compilable functions."""

_NAMESPACES: dict[str, dict[str, Any]] = {}
"""For each module, its global names, with machine code in place of the compilable functions."""


@cache
def has_compiler() -> bool:
    """Whether numba is installed, and the environment does not switch it off."""
    switched_off = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
    return not switched_off and importlib.util.find_spec("numba") is not None


def compilable(function: _F) -> _F:
    """Declare that a function can be compiled, and makes no arrays and calls none that does."""
    _COMPILABLE.add(function)
    return function


def machine_code(function: _F) -> _F:
    """Return the machine code of a compilable function. It is compiled when it is first called.

    All names that the function, and what it calls, has from its module are constants.
    """
    found: _F = _namespace(function.__module__)[function.__name__]
    return found


def run(function: Callable[..., Any], *tables: Any, compiles: bool) -> Any:
    """Run a compilable function, as machine code or as plain Python, and return what it returns.

    All that it calls is in its own module, so that numba's cache sees every change.

    Parameters
    ----------
    function : callable
        Compilable function.
    *tables
        Its arguments: numbers, arrays, and named tuples of arrays. What it writes is in the arrays
        afterwards.
    compiles : bool
        Whether it runs as machine code.
    """
    if compiles:
        return machine_code(function)(*tables)
    plain = [_plain(each) for each in tables]
    found = function(*plain)
    for table, values in zip(tables, plain, strict=True):
        _copy(values, table)
    return found


def _plain(table: Any) -> Any:
    """Return lists in place of arrays."""
    if isinstance(table, tuple):
        return type(table)(*map(_plain, table))
    return table.tolist() if hasattr(table, "tolist") else table


def _copy(values: Any, table: Any) -> None:
    """Write lists to the arrays that they come from."""
    if isinstance(table, tuple):
        for value, each in zip(values, table, strict=True):
            _copy(value, each)
    elif isinstance(values, list):
        table[:] = values


def _namespace(module: str) -> dict[str, Any]:
    if module in _NAMESPACES:
        return _NAMESPACES[module]
    from fpgapipe.machine_code import compiled_without_counts

    names = vars(sys.modules[module])
    # The functions of a module call each other, so they share the names before these are complete.
    found = _NAMESPACES[module] = dict(names)
    for name, value in names.items():
        if not _is_compilable(value):
            continue
        if value.__module__ == module:
            plain = FunctionType(value.__code__, found, name, value.__defaults__)
            found[name] = compiled_without_counts(plain)
        else:
            found[name] = _namespace(value.__module__)[value.__name__]
    return found


@cache
def digest(function: Callable[..., Any]) -> str:
    """Return a digest of the sources of a compilable function and of all that it may call.

    A change in any of them must compile all machine code again. But numba's cache only checks the
    file of the outermost function and the types of its arguments, so the digest has to become a
    part of such a type. Numbers that a module has from others are part of it as well.
    """
    modules: dict[str, Any] = {}
    waiting = [function.__module__]
    while waiting:
        name = waiting.pop()
        if name in modules:
            continue
        modules[name] = names = vars(sys.modules[name])
        waiting += [each.__module__ for each in names.values() if _is_compilable(each)]
    content = [
        *map(inspect.getsource, (sys.modules[name] for name in sorted(modules))),
        *(
            f"{name}.{key}={value!r}"
            for name in sorted(modules)
            for key, value in sorted(modules[name].items())
            if isinstance(value, (int, float))
        ),
    ]
    return f"{zlib.crc32(''.join(content).encode()):08x}"


def _is_compilable(value: Any) -> bool:
    return isinstance(value, FunctionType) and value in _COMPILABLE
