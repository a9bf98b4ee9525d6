"""Weights out: a file of a run's weights for the module or model that the network came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fpgapipe.errors import UserError
from fpgapipe.files import size_text, write_output
from fpgapipe.host.build.build import holding
from fpgapipe.host.terminal.console import Table
from fpgapipe.host.terminal.outputs import check_output
from fpgapipe.host.terminal.result import Result
from fpgapipe.host.weights.onnx_file import onnx_bytes
from fpgapipe.host.weights.parameters_file import source_tensors
from fpgapipe.host.weights.tensor_files import TENSOR_FORMATS, write_tensors
from fpgapipe.host.weights.trained_run import find_run, open_run

ONNX = ".onnx"


@dataclass(frozen=True)
class Exported(Result):
    """A file that an export has written.

    Attributes
    ----------
    file : Path
    network : str
    checkpoint : Path
        The checkpoint whose weights it has.
    step : int
        Steps of the training until then.
    tensors : tuple of dict
        ``name``, ``shape`` and ``dtype`` of each tensor of the network's source, in its order.
    """

    RECORDS: ClassVar[str] = "tensors"

    file: Path
    network: str
    checkpoint: Path
    step: int
    tensors: tuple[dict[str, Any], ...]

    def to_dict(self) -> dict[str, Any]:
        """The written file and its source, and a record for each tensor."""
        return {
            "file": str(self.file),
            "network": self.network,
            "checkpoint": str(self.checkpoint),
            "step": self.step,
            "bytes": self.file.stat().st_size,
            self.RECORDS: list(self.tensors),
        }

    def shown(self) -> Iterator[Table | str]:
        """A line: how much of what was written where."""
        count = len(self.tensors)
        yield (
            f"{self.network} after {self.step:,} mini-batch{'es' * (self.step != 1)}: {count:,} "
            f"tensor{'s' * (count != 1)}, {size_text(self.file.stat().st_size)}, written to "
            f"{self.file}"
        )


def export(
    run: Path | str,
    output: Path | str,
    *,
    step: int | None = None,
    backend: str | None = None,
    network: str | None = None,
) -> Exported:
    """Write the weights of a run by the names and layouts of the module that its network came from.

    Parameters
    ----------
    run : path
        A build, or the folder of one of its runs.
    output : path
        File to write: ``.safetensors``, ``.npz``, ``.pt`` or ``.onnx``.
    step : int, optional
        Mini-batches of the checkpoint; the newest one if it is not given.
    backend : str, optional
        Backend of the run; not needed if the build has one run only.
    network : str, optional
        For ``.onnx``, the ONNX file or the ``module:function`` that was built; naming a function
        runs the code of its module.

    Raises
    ------
    UserError
        If there is no such run or checkpoint, its network cannot be written in this format, or
        the file cannot be written.
    """
    path = Path(output)
    suffix = path.suffix.lower()
    if suffix not in (*TENSOR_FORMATS, ONNX):
        names = ", ".join((*TENSOR_FORMATS, ONNX))
        raise UserError(f"{path}: a file of weights must end in one of {names}")
    if network is not None and suffix != ONNX:
        raise UserError(f"--network is for {ONNX} only; {suffix} needs the build alone")
    check_output(path)
    with holding(find_run(Path(run), backend)[0]):
        found = open_run(Path(run), backend=backend, step=step)
    graph = found.build.graph
    tensors = source_tensors(graph, found.parameters, found.num_batches)
    if suffix == ONNX:
        write_output(path, onnx_bytes(graph, tensors, found.parameters, network))
    else:
        write_tensors(path, tensors)
    records = tuple(
        {"name": name, "shape": list(value.shape), "dtype": str(value.dtype)}
        for name, value in tensors.items()
    )
    return Exported(path, graph.name, found.path, found.checkpoint.step, records)
