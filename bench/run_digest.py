"""A digest that two runs share if they trained alike: the step and the bits of the last weights."""

import hashlib
from pathlib import Path

from fpgapipe.host.runtime.checkpoint import Checkpoint, CheckpointFolder
from fpgapipe.host.runtime.run_folder import CHECKPOINTS


def newest_weights(folder: Path) -> tuple[int, str]:
    """Step and digest of the newest checkpoint of a run; step 0 and no digest if it has none."""
    newest = next(iter(CheckpointFolder(folder / CHECKPOINTS)), None)
    if newest is None:
        return 0, ""
    digest = hashlib.sha256()
    checkpoint = Checkpoint.read(newest)
    for name, value in sorted(checkpoint.state.items()):
        digest.update(name.encode() + value.tobytes())
    return checkpoint.step, digest.hexdigest()
