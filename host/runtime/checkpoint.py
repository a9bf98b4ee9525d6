"""Checkpoints: files from which a training continues, bit for bit; they appear whole or not at all.

A file consists of a line that identifies the format, a line with the SHA-256 of all that follows, a
line of JSON, and the values one after the other: little-endian FP32, in the order of the list in
the JSON.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fpgapipe.errors import FileError, UserError
from fpgapipe.files import open_file, parse_json, remove_leftovers, size_text, write_whole
from fpgapipe.host.runtime.divergence import explosion
from fpgapipe.json_faults import faults_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from io import BufferedReader

    from numpy.typing import NDArray

MAGIC = b"fpgapipe-checkpoint 2\n"

LAYERS_MAGIC = b"fpgapipe-checkpoint 1\n"
"""First line of an earlier version, whose parameters may have their axes in the order in which the
layers read them, not in that of the network's source."""

MAX_BYTES = 1 << 36
"""Most bytes of a checkpoint; no board has more memory."""

MAX_HEAD_BYTES = 1 << 23
"""Most bytes of the line of JSON: more than a hundred thousand parameters need."""

Shape = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=1 << 40)], ...], Field(max_length=16, strict=False)
]

KEPT = 3
"""Number of checkpoints that a run keeps: the newest ones."""

logger = logging.getLogger(__name__)


def read_checkpoint(path: Path | str) -> Checkpoint:
    """Read a checkpoint.

    Parameters
    ----------
    path : path
        A file ``run/BACKEND/checkpoints/step-N.ckpt`` of a build.

    Raises
    ------
    UserError
        If the file is no checkpoint, or is damaged.
    """
    return Checkpoint.read(Path(path))


class CheckpointError(UserError):
    """A checkpoint cannot be used; the message says why."""


@dataclass(frozen=True)
class Checkpoint:
    """State of a training between two steps.

    Attributes
    ----------
    step : int
        Number of steps that are done.
    build : str
        Digest of the build that is trained.
    settings : mapping
        Settings that the further steps depend on (`Settings.decisive`) and the digest of the
        samples; values of JSON.
    state : mapping of str to float32 array
        State of the backend (`StepRunner.state`).
    has_own_layout : bool
        Whether parameters are known to have the layout of the network's source. Earlier versions do
        not say so.
    """

    step: int
    build: str
    settings: Mapping[str, Any]
    state: Mapping[str, NDArray[np.float32]] = field(repr=False)
    has_own_layout: bool = True

    def write(self, path: Path) -> None:
        """Write the checkpoint; even after a crash, the file is either complete or not there.

        Raises
        ------
        OSError
            If the file cannot be written; nothing is left of it then.
        """
        head = {
            "step": self.step,
            "build": self.build,
            "settings": dict(self.settings),
            "state": [[name, list(value.shape)] for name, value in self.state.items()],
        }
        pieces = [json.dumps(head).encode() + b"\n"]
        pieces += [np.ascontiguousarray(value, "<f4").tobytes() for value in self.state.values()]
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        write_whole(path, [MAGIC, digest.hexdigest().encode() + b"\n", *pieces])

    @classmethod
    def read(cls, path: Path, most_bytes: int = MAX_BYTES) -> Checkpoint:
        """Read a checkpoint.

        Parameters
        ----------
        path : Path
        most_bytes : int
            Most bytes of all values together; a file with more is refused before they are read.

        Raises
        ------
        CheckpointError
            If the file is no checkpoint, is damaged, or is too large.
        """
        try:
            with open_file(path, MAX_BYTES) as file:
                return cls._read(path, file, most_bytes)
        except FileError as error:
            raise CheckpointError(str(error)) from None
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None

    @classmethod
    def _read(cls, path: Path, file: BufferedReader, most_bytes: int) -> Checkpoint:
        begin = file.read(len(MAGIC))
        if begin not in (MAGIC, LAYERS_MAGIC):
            raise CheckpointError(f"{path} is no checkpoint of this version")
        written = file.readline(80)
        head = file.readline(MAX_HEAD_BYTES)
        try:
            found = _HEADS.validate_json(head)
            parse_json(head)  # refuses NaN and infinities
        except ValueError as error:
            why = faults_of(error)[0] if isinstance(error, ValidationError) else str(error)
            why = f"damaged, or no checkpoint of this version: {why}"
            raise CheckpointError(f"{path} is {why}") from None
        size = sum(4 * math.prod(shape) for _, shape in found.state)
        there = os.fstat(file.fileno()).st_size - file.tell()
        if size != there or len(dict(found.state)) < len(found.state):
            raise CheckpointError(
                f"{path} is damaged, or no checkpoint of this version: it has {there:,} bytes of "
                f"values for {size:,}"
            )
        if size > most_bytes:
            raise CheckpointError(
                f"{path} is of another network: it has {size_text(size)} of values, of which at "
                f"most {size_text(most_bytes)} are needed"
            )
        digest = hashlib.sha256(head)
        state = {}
        for name, shape in found.state:
            raw = file.read(4 * math.prod(shape))
            digest.update(raw)
            if len(raw) == 4 * math.prod(shape):  # else the file has shrunk while it was read
                state[name] = np.frombuffer(raw, "<f4").astype(np.float32).reshape(shape)
        if digest.hexdigest().encode() + b"\n" != written:
            raise CheckpointError(f"{path} is damaged: its bytes are not those of its checksum")
        return cls(found.step, found.build, found.settings, state, begin == MAGIC)


class _Head(BaseModel):
    """The line of JSON of a checkpoint."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    step: int = Field(ge=0, lt=1 << 63)
    build: str
    settings: dict[str, bool | int | float | str | None]
    state: list[tuple[str, Shape]] = Field(strict=False)


_HEADS = TypeAdapter(_Head)


@dataclass(frozen=True)
class CheckpointFolder:
    """The checkpoints of a run, ``step-00000100.ckpt`` and so on.

    Attributes
    ----------
    path : Path
        Folder of the checkpoints; it is made when the first one is written.
    """

    path: Path

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint and drop the oldest ones."""
        self.path.mkdir(parents=True, exist_ok=True)
        path = self.path / f"step-{checkpoint.step:08d}.ckpt"
        checkpoint.write(path)
        logger.debug("wrote %s", path)
        for old in list(self)[KEPT:]:
            old.unlink()
        return path

    def __iter__(self) -> Iterator[Path]:
        """Paths of the checkpoints, the newest first."""
        steps = {}
        for path in self.path.glob("step-*.ckpt"):
            if named := re.fullmatch(r"step-(\d+)\.ckpt", path.name):
                steps[int(named[1])] = path
        for step in sorted(steps, reverse=True):
            yield steps[step]

    def steps(self) -> list[int]:
        """Numbers of steps of the checkpoints, the largest first."""
        return [int(path.stem.removeprefix("step-")) for path in self]

    def newest(
        self, build: str, most_bytes: int = MAX_BYTES, fixed: Collection[str] = ()
    ) -> tuple[Path, Checkpoint]:
        """The newest undamaged checkpoint of a build; a warning names each newer one.

        Parameters
        ----------
        build : str
            Digest of the build.
        most_bytes : int
            Most bytes of all values together, as for `Checkpoint.read`.
        fixed : collection of str
            Names of tensors that no training changes, as for `explosion`.

        Raises
        ------
        UserError
            If there is none.
        """
        for path in self:
            try:
                checkpoint = Checkpoint.read(path, most_bytes)
                if checkpoint.build != build:
                    raise CheckpointError(f"{path} is of another build")
                if fault := explosion(checkpoint.state, fixed):
                    raise CheckpointError(f"{path} is of a training that diverged: {fault}")
            except CheckpointError as error:
                logger.warning("%s; taking the one before it", error)
                continue
            return path, checkpoint
        raise self.lack

    @property
    def lack(self) -> UserError:
        """The error if there is none to resume from."""
        return UserError(
            f"{self.path} has no checkpoint to resume from; leave --resume out to begin anew"
        )

    def tidy(self) -> None:
        """Remove temporary files of a run that was killed."""
        remove_leftovers(self.path)

    def set_aside(self, step: int) -> None:
        """Rename checkpoints after `step`, so that a run that continues from there ignores them."""
        for path in self:
            if int(path.stem.removeprefix("step-")) > step:
                path.replace(path.with_name(path.name + ".unused"))
