"""The summary of a run, as ``fpgapipe run --json`` prints it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fpgapipe.host.runtime.check import Difference


@dataclass(frozen=True)
class RunSummary:
    """Results of a run; ``to_dict`` gives them for JSON.

    Attributes
    ----------
    clk_hz : float
        Clock frequency at which cycles are counted, Hz: the lowest that a device was planned for.
    other_clocks_hz : mapping of str to float
        Clock frequency of each device whose bitstream has another one than was planned, Hz.
    steps : int
        Number of steps that are done in all.
    ran : int
        Number of these steps that this run has done.
    loss : float or None
        Loss of the last mini-batch.
    accuracy : float or None
        Accuracy of the last validation; in inference, that of all samples.
    cycles : int or None
        Cycles of the last mini-batch, at `clk_hz` whatever clock a device has.
    samples_per_s : float or None
        Samples per second at the devices' clock.
    macs : int
        Multiply-accumulates of the matrix products of a mini-batch, in all passes.
    macs_per_s : float
        Multiply-accumulates of matrix products, in all passes, per second of wall time.
    wall_s : float
        Wall time of this run's steps, seconds.
    difference : Difference or None
        First difference that a check has found.
    worst : mapping
        For a check with a tolerance, the largest error of each quantity, as a share of its
        tolerance.
    folder : Path
        Folder with the files that the run has written.
    learning_rate : float or None
        Largest learning rate of the training, chosen for the batch if none was given; None in
        inference.
    rate_schedule : str or None
        Course of the learning rate, in words.
    simulation : str or None
        Which blocks were simulated in C++, in words; None if nothing was simulated.
    stopped : bool
        Whether the run has stopped at the end of its time, before its end.
    ended_early : bool
        Whether it has ended for want of a better validation.
    best : mapping
        ``step`` and ``accuracy`` of the best validation; empty if there is none.
    steps_asked : int
        Number of steps after which the run is at its end.
    model_steps : int
        Number of the first steps that the bit-exact model has done for a simulation.
    outputs : mapping of str to mapping of str to float
        If the network has several outputs, ``loss`` of the last mini-batch (without its weight) and
        ``accuracy`` of each, None where there is none.
    """

    network: str
    mode: str
    backend: str
    check: str | None
    devices: int
    schedule: str
    batch: int
    clk_hz: float
    steps: int
    ran: int
    loss: float | None
    accuracy: float | None
    cycles: int | None
    macs: int
    wall_s: float
    difference: Difference | None
    worst: dict[str, float]
    folder: Path
    learning_rate: float | None
    rate_schedule: str | None
    simulation: str | None
    stopped: bool
    steps_asked: int
    model_steps: int
    ended_early: bool = False
    best: Mapping[str, float] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    other_clocks_hz: Mapping[str, float] = field(default_factory=dict)

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second at the devices' clock; None if no cycles are counted."""
        return self.batch / self.cycles * self.clk_hz if self.cycles else None

    @property
    def macs_per_s(self) -> float:
        """Multiply-accumulates per second of wall time."""
        return self.macs * self.ran / self.wall_s if self.wall_s else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Values of the summary, by name."""
        found = {
            name: getattr(self, name)
            for name in (
                "network", "mode", "backend", "check", "devices", "schedule", "batch", "clk_hz",
                "steps", "ran", "loss", "accuracy", "cycles", "samples_per_s", "macs", "wall_s",
                "macs_per_s", "learning_rate", "rate_schedule", "simulation", "stopped",
                "ended_early", "best", "steps_asked", "model_steps", "outputs", "other_clocks_hz",
            )
        }  # fmt: skip
        return found | {
            "difference": self.difference.to_dict() if self.difference else None,
            "worst_share_of_tolerance": self.worst,
            "folder": str(self.folder),
        }
