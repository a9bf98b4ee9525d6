"""Optional libraries, imported when they are first needed."""

import importlib
import importlib.util
from typing import Any

from fpgapipe.errors import UserError

EXTRAS = {
    "grpc": "agent",
    "grpcio": "agent",
    "litex": "litex",
    "onnx": "onnx",
    "onnxruntime": "onnxruntime",
    "onnxscript": "export",
    "safetensors": "export",
    "torch": "torch",
    "highspy": "solver",
    "numba": "fast",
    "sklearn": "data",
    "PIL": "data",
    "mpi4py": "mpi",
}
"""For each library, the extra of fpgapipe that installs it."""


def require(library: str, purpose: str) -> Any:
    """Import an optional library, or raise an error that names the extra to install.

    Parameters
    ----------
    library : str
        A key of `EXTRAS`.
    purpose : str
        What the library is needed for, as the subject of the error's sentence:
        ``"reading an ONNX file"``.

    Raises
    ------
    UserError
        If the library is not installed.
    """
    if importlib.util.find_spec(library) is None:
        extra = EXTRAS[library]
        raise UserError(f"{purpose} needs {library}: pip install 'fpgapipe[{extra}]'")
    return importlib.import_module(library)
