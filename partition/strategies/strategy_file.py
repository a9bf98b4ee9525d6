"""Strategies that people write: the degrees of layers, and stages of a pipeline, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fpgapipe.errors import FileError, UserError
from fpgapipe.files import read_bytes
from fpgapipe.json_faults import faults_of
from fpgapipe.lowering.shards.degrees import Axis, Degrees
from fpgapipe.lowering.units.network_units import layers_together
from fpgapipe.network.parameter_groups import matches

if TYPE_CHECKING:
    from pathlib import Path

    from fpgapipe.network.graph import Graph

MAX_BYTES = 16 * 2**20
"""Largest file that is read, bytes."""

Axes = dict[Axis, int]


class StageFile(BaseModel):
    """A stage of a pipeline, as somebody has written it down.

    Attributes
    ----------
    devices : int
        Number of devices.
    degrees : dict of str to dict of str to int
        Degrees of the layers of the stage; see `StrategyFile`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    devices: int = Field(ge=1, le=1024)
    degrees: dict[str, Axes] = Field(min_length=1)


class StrategyFile(BaseModel):
    """The degrees of a network's layers, as somebody has written them down.

    Attributes
    ----------
    degrees : dict of str to dict of str to int, optional
        Degrees above 1 by their axes, for names of layers. A name may have the wildcards ``*`` and
        ``?``; the first that matches a layer counts. Layers that run together have the degrees of
        the first of them.
    stages : list of StageFile, optional
        Instead of `degrees`, stages of a pipeline, in their order. A layer belongs to the first
        stage with a name that matches it.
    schedule : str, optional
        Schedule of a pipeline.
    micro_batches : int, optional
        Number of micro-batches of a mini-batch.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["fpgapipe-strategy"] = "fpgapipe-strategy"
    version: Literal[1] = 1
    degrees: dict[str, Axes] | None = Field(default=None, min_length=1)
    stages: list[StageFile] | None = Field(default=None, min_length=1)
    schedule: str | None = None
    micro_batches: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _check(self) -> StrategyFile:
        if (self.degrees is None) is (self.stages is None):
            raise ValueError("a strategy has either degrees or stages")
        if self.schedule is not None and self.stages is None:
            raise ValueError("only a strategy with stages has a schedule")
        return self

    @classmethod
    def read(cls, path: Path) -> StrategyFile:
        """Read a strategy from a file.

        Raises
        ------
        FileError
            If the file is no strategy. The message lists every fault.
        """
        data = read_bytes(path, MAX_BYTES)
        try:
            found = cls.model_validate_json(data)
        except ValidationError as error:
            raise FileError(path, faults_of(error)) from None
        given = {"degrees": found.degrees or {}}
        given |= {
            f"stages.{number}.degrees": stage.degrees
            for number, stage in enumerate(found.stages or ())
        }
        faults = [
            f"{where}.{name}.{axis} must be at least 1, not {number}"
            for where, degrees in given.items()
            for name, axes in degrees.items()
            for axis, number in axes.items()
            if number < 1
        ]
        if faults:
            raise FileError(path, faults)
        return found

    def of(self, graph: Graph) -> dict[str, Degrees]:
        """Degrees of each layer of a network.

        Raises
        ------
        UserError
            If no name matches a layer, or a name matches none, or only layers that run together
            with one before them, of which the strategy says otherwise.
        """
        return self._found(graph)[1]

    def stages_of(
        self, graph: Graph
    ) -> tuple[list[tuple[str, ...]], tuple[int, ...], dict[str, Degrees]]:
        """Layers and numbers of devices of all stages, and the degrees of each layer.

        Raises
        ------
        UserError
            If no name matches a layer, a name matches none, or a stage has no layer.
        """
        home, degrees = self._found(graph)
        stages = self.stages or [StageFile(devices=1, degrees=self.degrees or {})]
        layers = [
            tuple(name for name in graph.layers if home[name] == number)
            for number in range(len(stages))
        ]
        for number, names in enumerate(layers):
            if not names:
                raise UserError(
                    f"stage {number} of the strategy has no layer of {graph.name} that does not "
                    "run together with one of another stage"
                )
        return layers, tuple(stage.devices for stage in stages), degrees

    def _found(self, graph: Graph) -> tuple[dict[str, int], dict[str, Degrees]]:
        """Stage and degrees of each layer."""
        patterns = [
            (number, pattern, axes)
            for number, degrees in enumerate(
                [self.degrees] if self.degrees else [s.degrees for s in self.stages or ()]
            )
            for pattern, axes in degrees.items()
        ]
        if len(patterns) > len(graph.layers):
            raise UserError(
                f"the strategy has {len(patterns):,} names, and {graph.name} has "
                f"{len(graph.layers):,} layers; each name must be the first that matches a layer"
            )
        home: dict[str, int] = {}
        found: dict[str, Degrees] = {}
        decides: dict[str, tuple[int, str]] = {}
        for name in graph.layers:
            for number, pattern, axes in patterns:
                if matches(name, pattern):
                    home[name], found[name] = number, Degrees(**axes)
                    decides[name] = number, pattern
                    break
            else:
                raise UserError(f"the strategy says nothing about layer {name!r} of {graph.name}")
        unused = {(number, pattern) for number, pattern, _ in patterns} - set(decides.values())
        if unused:
            raise UserError(
                f"the strategy has degrees for {min(unused)[1]!r}, but no layer of {graph.name} "
                "needs them"
            )
        groups = layers_together(graph)
        of_groups = {decides[first] for first, *_ in groups}
        for first, *others in groups:
            for name in others:
                is_other = (home[name], found[name]) != (home[first], found[first])
                if is_other and decides[name] not in of_groups:
                    raise UserError(
                        f"the strategy says otherwise of {decides[name][1]!r} than of {first!r}, "
                        f"with which layer {name!r} runs together: leave it out, or say it of "
                        f"{first!r}"
                    )
                home[name], found[name] = home[first], found[first]
        return home, found
