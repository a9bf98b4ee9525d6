"""Formulas of many models in a ring: devices keep their samples, and the models travel.

Each of S devices has a shard of the training set, which never leaves it. A model visits one device
after the other and is trained there on all mini-batches of the shard; then it hops to the next
device with its weights and the optimiser's values. K <= S models start on different devices, so no
device has two of them. If there are more models than devices, they are trained in groups, one group
after the other.

This is a re-implementation from the abstract of Chen et al., IEEE ISM 2015; the formulas are our
own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RingModel:
    """Time of a step and state of a model.

    Attributes
    ----------
    network : str
    step_s : float
        Seconds of a mini-batch on a device.
    state_bytes : int
        Bytes of weights, statistics and the optimiser's values, which travel.
    """

    network: str
    step_s: float
    state_bytes: int


@dataclass(frozen=True)
class RingCost:
    """Times and bytes of a training in a ring, and of one model a device.

    Attributes
    ----------
    models : tuple of RingModel
    devices, epochs, batch : int
    shard_samples : int
        Samples of each device.
    sample_bytes : int
        Bytes of a sample and its label, as they lie in a device's memory.
    hop_s : float
        Mean seconds of a hop, in which all models of a group move at once.
    stream_s : float
        Seconds in which all devices pass a shard to the next one at once.
    """

    models: tuple[RingModel, ...]
    devices: int
    epochs: int
    batch: int
    shard_samples: int
    sample_bytes: int
    hop_s: float
    stream_s: float

    @property
    def visit_steps(self) -> int:
        """Mini-batches of a visit; samples that fill none are left out."""
        return self.shard_samples // self.batch

    @property
    def groups(self) -> int:
        """Groups of at most as many models as devices, trained one after the other."""
        return math.ceil(len(self.models) / self.devices)

    @property
    def rounds(self) -> int:
        """Rounds of a group: in each, every model makes a visit and a hop."""
        return self.epochs * self.devices

    @property
    def visits_s(self) -> tuple[float, ...]:
        """Seconds of a visit of each model."""
        return tuple(self.visit_steps * model.step_s for model in self.models)

    @property
    def longest_visits_s(self) -> tuple[float, ...]:
        """Seconds of the longest visit in each group, for which all devices wait."""
        visits = self.visits_s
        return tuple(
            max(visits[first : first + self.devices])
            for first in range(0, len(visits), self.devices)
        )

    @property
    def total_s(self) -> float:
        """Seconds of the whole training: over all groups, E S (longest visit + hop)."""
        return self.rounds * sum(visit + self.hop_s for visit in self.longest_visits_s)

    @property
    def utilisation(self) -> float:
        """Share of the devices' time in which they have a model, without hops: K/S of a group."""
        return len(self.models) / (self.groups * self.devices)

    @property
    def busy(self) -> float:
        """Share of the devices' time in which they train, with hops and waiting counted."""
        busy = self.rounds * sum(self.visits_s)
        return busy / (self.devices * self.total_s) if self.total_s else 0.0

    @property
    def state_bytes(self) -> int:
        """Bytes of the largest model: the most that a hop moves over one wire in one direction."""
        return max(model.state_bytes for model in self.models)

    @property
    def shard_bytes(self) -> int:
        """Bytes of a device's samples."""
        return self.shard_samples * self.sample_bytes

    @property
    def streamed_s(self) -> float:
        """Seconds of one model a device, if samples are streamed while the devices compute."""
        return self.rounds * sum(max(visit, self.stream_s) for visit in self.longest_visits_s)

    @property
    def streamed_first_s(self) -> float:
        """Seconds of one model a device, if the devices wait for the samples of each shard."""
        return self.rounds * sum(visit + self.stream_s for visit in self.longest_visits_s)

    @property
    def pays_from_samples(self) -> int:
        """Samples of a shard from which on a hop moves fewer bytes than streaming the shard."""
        return self.state_bytes // self.sample_bytes + 1

    @property
    def moves_less(self) -> bool:
        """Whether a hop moves fewer bytes than streaming a shard would."""
        return self.state_bytes < self.shard_bytes

    @property
    def pays_below_bytes_per_s(self) -> float:
        """Rate of a wire below which the ring is faster: (bytes of a shard - of a model) / visit.

        One model a device hides its stream behind its visits where wires are faster than that. The
        rate is that of the group whose visits are shortest; 0 if a ring never pays.
        """
        visit = min(self.longest_visits_s)
        return max(self.shard_bytes - self.state_bytes, 0) / visit

    @property
    def is_faster(self) -> bool:
        """Whether the ring takes less time than streaming concurrently with computing."""
        return self.total_s < self.streamed_s

    def to_dict(self) -> dict[str, Any]:
        """All figures, for JSON."""
        return {
            "models": [
                {
                    "network": model.network,
                    "step_s": model.step_s,
                    "visit_s": visit,
                    "state_bytes": model.state_bytes,
                }
                for model, visit in zip(self.models, self.visits_s, strict=True)
            ],
            "devices": self.devices,
            "epochs": self.epochs,
            "batch": self.batch,
            "shard_samples": self.shard_samples,
            "sample_bytes": self.sample_bytes,
            "visit_steps": self.visit_steps,
            "groups": self.groups,
            "rounds": self.rounds * self.groups,
            "hop_s": self.hop_s,
            "total_s": self.total_s,
            "utilisation": self.utilisation,
            "busy": self.busy,
            "hop_bytes": self.state_bytes,
            "one_model_a_device": {
                "shard_bytes": self.shard_bytes,
                "stream_s": self.stream_s,
                "total_s": self.streamed_s,
                "total_waiting_s": self.streamed_first_s,
            },
            "pays_from_shard_samples": self.pays_from_samples,
            "pays_below_bytes_per_s": self.pays_below_bytes_per_s,
            "moves_less": self.moves_less,
            "is_faster": self.is_faster,
        }
