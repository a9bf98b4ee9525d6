"""Loading of the network that a user names: a built-in network, a file, or a function."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpgapipe.errors import FileError, UserError, nearest, shown
from fpgapipe.files import open_file
from fpgapipe.network import zoo as networks
from fpgapipe.network.frontends.frontend import FRONTENDS, listed
from fpgapipe.network.graph import Graph, NetworkError
from fpgapipe.output import beside_output

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_BYTES = 1 << 31
"""Largest network file that is opened, bytes; ONNX files cannot be larger."""

MAX_SOURCE_BYTES = 16 << 20
"""Largest Python module that is imported, bytes."""


def load_network(name: str, batch: int | None = None) -> Graph:
    """Load a network.

    Parameters
    ----------
    name : str
        A built-in name (``resnet50``), a file (`FRONTENDS`), or ``module:function``. The function
        may take the batch size, and returns a `Graph`, a ``torch.export.ExportedProgram``, or a
        ``torch.nn.Module`` with a tuple of example inputs. Naming a function runs the code of its
        module; files never run code.
    batch : int, optional
        Samples in a batch. The default is the number that a file says, or else 1.

    Raises
    ------
    UserError
        If there is no such network, it cannot be read, or it needs an extra that is not installed.
    """
    if batch is not None and batch < 1:
        raise NetworkError(f"batch must be at least 1, not {batch}")
    if networks.find(name):
        return networks.built_in(name, 1 if batch is None else batch)
    path = Path(name)
    if path.suffix == ".py":
        raise _python_file(path)
    if path.suffix.lower()[1:] in FRONTENDS or os.sep in name or os.path.lexists(path):
        return load_file(path, batch)
    if ":" in name:
        return _load_function(name, batch)
    raise NetworkError(
        f"no network {shown(name)}{nearest(name, networks.NETWORKS)}; a network is a built-in name "
        f"({', '.join(networks.NETWORKS)}), a file ({', '.join(listed())}) or module:function"
    )


def _python_file(path: Path) -> NetworkError:
    """The error for a file of Python, which says how a function of it is named."""
    where = f", with {path.parent} as the working directory" if path.name != str(path) else ""
    return NetworkError(
        f"{shown(str(path))} is a file of Python: name the function in it that gives the network, "
        f"as {path.stem}:FUNCTION{where}"
    )


def load_file(path: Path, batch: int | None = None) -> Graph:
    """Load a network from a file, whose suffix tells its format.

    Raises
    ------
    UserError
        If the file is missing, broken or of an unknown format, or needs an extra that is not
        installed.
    """
    suffix = path.suffix.lower()
    open_file(path, MAX_BYTES).close()  # report a missing file before an unknown suffix
    if suffix[1:] in FRONTENDS:
        return FRONTENDS[suffix[1:]].read(path, batch)
    formats = ", ".join(f"{suffix} ({what})" for suffix, what in listed().items())
    raise FileError(path, [f"is of no known format; there are {formats}"])


def _load_function(name: str, batch: int | None) -> Graph:
    with beside_output():
        return _of_function(name, batch)


def _of_function(name: str, batch: int | None) -> Graph:
    module_name, _, attribute = name.partition(":")
    function = _find_function(name, module_name, attribute)
    takes_batch = _takes_batch(function)
    graph = _call(name, function, (1 if batch is None else batch,) if takes_batch else ())
    if not isinstance(graph, Graph):
        from fpgapipe.network.frontends.torch.torch_program import from_torch

        graph = from_torch(graph, name=attribute)
    if not takes_batch and batch not in (None, graph.batch):
        raise NetworkError(
            f"{name}: the function takes no batch size; --batch does not apply to it"
        )
    return graph


def _find_function(name: str, module_name: str, attribute: str) -> Callable[..., Any]:
    if (
        not all(part.isidentifier() for part in module_name.split("."))
        or not attribute.isidentifier()
    ):
        raise NetworkError(f"{name!r} is no module:function")
    sys.path.insert(0, "")  # the working directory, even if it was deleted
    try:
        _refuse_sources(module_name)
        module = importlib.import_module(module_name)
    except UserError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise NetworkError(f"{name}: importing {module_name!r} failed: {error}") from error
        raise NetworkError(
            f"{name}: no module {module_name!r} on Python's path or in the working directory"
        ) from None
    except (Exception, SystemExit) as error:  # a script may call sys.exit
        raise NetworkError(
            f"{name}: importing {module_name!r} failed: {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.pop(0)
    function = getattr(module, attribute, None)
    if function is None:
        functions = [each for each in dir(module) if not each.startswith("_")]
        raise NetworkError(
            f"{name}: {module_name!r} has no {attribute!r}{nearest(attribute, functions)}"
        )
    if not callable(function):
        raise NetworkError(f"{name}: {attribute!r} is no function but {type(function).__name__}")
    result: Callable[..., Any] = function
    return result


def _refuse_sources(module_name: str) -> None:
    """Refuse a module if its source, or a package's around it, is too large or no plain file."""
    parts = module_name.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        spec = None if name in sys.modules else importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            open_file(Path(spec.origin), MAX_SOURCE_BYTES).close()


def _takes_batch(function: Callable[..., Any]) -> bool:
    import inspect

    try:
        return bool(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return False


def _call(name: str, function: Callable[..., Any], arguments: tuple[int, ...]) -> Any:
    try:
        return function(*arguments)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise NetworkError(
            f"{name}: the function failed: {type(error).__name__}: {error}"
        ) from error
