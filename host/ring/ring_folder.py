"""The folder of a ring: its plan, Verilog, programs, log, checkpoints and trained parameters."""

from __future__ import annotations

import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fpgapipe.errors import UserError
from fpgapipe.files import write_whole
from fpgapipe.host.build.build_hardware import core_name
from fpgapipe.host.build.build_parts import CLUSTER, CLUSTERS, DEVICES, HARDWARE

if TYPE_CHECKING:
    from fpgapipe.host.ring.ring_build import RingBuild
    from fpgapipe.host.ring.ring_training import RingResult
    from fpgapipe.partition.strategies.ring import RingCost

RING = "ring.json"
MODELS = "models"


@dataclass(frozen=True)
class RingFolder:
    """A folder that a ring writes.

    Attributes
    ----------
    path : Path
    """

    path: Path

    def check(self, *, resumes: bool) -> None:
        """Check, before the work begins, whether a ring can be written there.

        Raises
        ------
        UserError
            If the folder is something else, cannot be written, has links in it, or has nothing to
            resume.
        """
        path = self.path
        try:
            if os.path.lexists(path) and not path.is_dir():
                raise UserError(f"{path} is there and is no folder; name another with -o")
            is_ring = (path / RING).is_file()
            if path.is_dir() and not is_ring and any(path.iterdir()):
                raise UserError(f"{path} is there and is no ring; name another with -o")
            if resumes and not is_ring:
                raise UserError(f"{path} has no ring to resume; leave --resume out to begin anew")
            links = [each for each in path.rglob("*") if each.is_symlink()] if is_ring else []
            if links:
                raise UserError(
                    f"{links[0]} is a link, and fpgapipe writes through none; remove it"
                )
            parent = path.absolute()
            while not os.path.lexists(parent):
                parent = parent.parent
            if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
                raise UserError(f"{path} cannot be written: {parent} is no folder to write in")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"{path} cannot be written: {reason}") from None

    def write(self, build: RingBuild, cost: RingCost) -> None:
        """Write what is built: the plan, the Verilog of the core, and the memories at first.

        Raises
        ------
        UserError
            If the folder cannot be written.
        """
        from fpgapipe.hw.rtl.core_verilog import device_verilog

        plans = {name: each.model_dump() for name, each in zip(
            build.plan.networks, build.plan.plans, strict=True)}  # fmt: skip
        described = {
            "format": "fpgapipe-ring",
            "networks": build.plan.networks,
            "seed": build.seed,
            "digest": build.digest,
            "cost": cost.to_dict(),
            "plans": plans,
        }
        core = build.groups[0].core
        texts = {
            RING: (json.dumps(described, indent=2) + "\n").encode(),
            CLUSTER: CLUSTERS.dump_json(build.cluster, indent=1) + b"\n",
            f"{HARDWARE}/{core_name(core)}.v": device_verilog(core).encode(),
        }
        for name, text in texts.items():
            self._write(name, text)
        for group, ring in enumerate(build.groups):
            images = ring.images([build.parameters[model] for model in build.members(group)])
            for device, image in enumerate(images):
                self._write(f"{DEVICES}/{group}-{device}.bin", image.tobytes())

    def keep(self, result: RingResult) -> None:
        """Write the state of each trained model, as arrays by name.

        Raises
        ------
        UserError
            If the folder cannot be written.
        """
        for number, model in enumerate(result.models):
            file = io.BytesIO()
            np.savez(file, allow_pickle=False, **dict(model.state))
            self._write(f"{MODELS}/{number}.npz", file.getvalue())

    def _write(self, name: str, data: bytes) -> None:
        path = self.path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, [data])
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}") from None
