"""``fpgapipe.profile``: how long the parts of a network take on this machine in PyTorch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fpgapipe.errors import UserError, counted
from fpgapipe.host.make.networks import loader
from fpgapipe.host.terminal.console import Table, scaled
from fpgapipe.host.terminal.progress import silent
from fpgapipe.host.terminal.result import Result
from fpgapipe.optional import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fpgapipe.host.terminal.progress import Progress
    from fpgapipe.host.torch_pipeline.layer_times import PartTimes
    from fpgapipe.network.graph import Graph


@dataclass(frozen=True)
class Profiled(Result):
    """Measured times of the parts of a network.

    Attributes
    ----------
    network : str
    samples : int
        Samples of the micro-batch that was measured.
    device : str
        Name of the processor or GPU, and the number of threads of a processor.
    parts : list of PartTimes
        In the order of the network. A part ends where one tensor goes on.
    """

    RECORDS: ClassVar[str] = "parts"

    network: str
    samples: int
    device: str
    parts: list[PartTimes]

    def to_csv(self) -> str:
        """The profile, as `fpgapipe.plan_profile` reads it from a file."""
        from fpgapipe.host.torch_pipeline.layer_times import to_csv

        return to_csv(self.parts, self.samples)

    def to_dict(self) -> dict[str, Any]:
        """Everything, times in seconds."""
        return {
            "network": self.network,
            "samples": self.samples,
            "device": self.device,
            "parts": [asdict(part) for part in self.parts],
        }

    def shown(self) -> Iterator[Table | str]:
        """A row for each part."""
        rows = [
            (
                part.layer,
                *(
                    scaled(seconds, "s") if seconds else "-"
                    for seconds in (
                        part.forward_s,
                        part.backward_input_s,
                        part.backward_weight_s,
                    )
                ),
                f"{part.output_bytes:,}",
                f"{part.weight_bytes:,}",
            )
            for part in self.parts
        ]
        title = f"{self.network}, {self.samples:,} samples, on {self.device}"
        yield Table("layer|>forward|>dX|>dW|>output bytes|>weight bytes", rows, title)
        whole = sum(
            part.forward_s + part.backward_input_s + part.backward_weight_s for part in self.parts
        )
        yield f"all passes of a micro-batch: {scaled(whole, 's')}"


def profile(
    network: str | Callable[[int], Graph],
    *,
    samples: int = 8,
    device: str = "auto",
    repeats: int = 10,
    threads: int | None = None,
    processes: int = 1,
    progress: Progress = silent,
) -> Profiled:
    """Measure a network in PyTorch, as `plan_profile` needs it.

    Parameters
    ----------
    network : str or callable
        Its name or file, or a function that gives the graph for a number of samples.
    samples : int
        Samples of a micro-batch.
    device : str
        ``cpu``, ``cuda``, ``cuda:1``, or ``auto``, which is a GPU if PyTorch sees one.
    repeats : int
        Passes of which the times are the medians, after two that are not measured.
    threads : int, optional
        Threads of a processor; one if it is not given, as for processes of a pipeline.
    processes : int
        Processes that go through the network at the same time: as many as a pipeline on this
        machine will have, which share its memory. On a GPU there is one.
    progress : callable
        Shows the progress.

    Raises
    ------
    UserError
        If PyTorch is missing or does not see the GPU, or the network has several outputs or a layer
        that the PyTorch reference does not have.
    """
    torch = require("torch", "a profile")
    from fpgapipe.host.backends.torch_backend import choose_device
    from fpgapipe.host.torch_pipeline.layer_times import measure_parts, others_at_work

    chosen = choose_device(device)
    if chosen.type == "cuda" and processes > 1:
        raise UserError("--processes is for processors; each process of a pipeline has its own GPU")
    threads = threads or 1
    load = loader(network)
    graph = load(samples)
    check_one_output(graph)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with progress() as display:
            display.add_task("measuring", unit="passes")
            with others_at_work(processes - 1, load, samples, threads):
                parts = measure_parts(graph, str(chosen), repeats, display.count)
    except NotImplementedError as error:
        raise UserError(str(error)) from None
    finally:
        torch.set_num_threads(before)
    if chosen.type == "cuda":
        name = torch.cuda.get_device_name(chosen)
    else:
        name = f"a processor, {counted(threads, 'thread')} in {counted(processes, 'process', 'es')}"
    return Profiled(load.name, samples, name, parts)


def check_one_output(graph: Graph) -> None:
    """Refuse a network whose loss would be a sum over several outputs."""
    if len(graph.outputs) > 1:
        raise UserError(
            f"{graph.name} has {len(graph.outputs)} outputs; pipelines in PyTorch train networks "
            "with one output, by softmax and cross-entropy"
        )
