"""fpgapipe plans, generates, simulates and trains pipelines over several FPGAs.

The names in ``__all__`` are the Python interface (docs/api.md). Each name is imported when it is
first used, so ``import fpgapipe`` is quick and needs none of the libraries that the names use.
"""

import ast
import functools
import importlib
from typing import TYPE_CHECKING

__version__ = "0.2.0"

__all__ = [
    "Answers", "BoardList", "BoardSheet", "BroughtUp", "Build", "Built", "Checkpoint",
    "Checkpoints", "ClusterSheet", "ClusterSpec", "Compared", "CoreSpec", "Covered", "Dataset",
    "DeviceSpec", "ElementFormat", "Exploration", "Explored", "Exported", "Generated", "Graph",
    "GraphBuilder", "Layers", "LinkEngineSpec", "Loss", "Measurement", "MemorySpec", "ModelBackend",
    "PipelineProgram", "Plan", "PlanRan", "Planned", "PlannedDegrees", "PlannedProfile",
    "Predictions", "Profiled", "Ran", "Reached", "Request", "Ring", "RunOptions", "RunSummary",
    "Samples", "Schedule", "ScratchpadSpec", "Settings", "SimulatorBackend", "StepOptions",
    "StepResult", "Timetable", "TorchBackend", "UserError", "VectorSpec", "Verified", "WireSpec",
    "__version__", "as_plan", "bringup", "build", "build_board", "build_pipeline", "chain_of",
    "check_schedule", "checkpoints", "compare", "coverage", "describe_board", "describe_cluster",
    "explore", "explore_board", "explore_smallest", "explore_target", "export", "generate",
    "initial_parameters", "inspect", "list_boards", "load_board", "load_cluster", "load_data",
    "load_network", "make_schedule", "measure_build", "one_link_each", "open_backend", "open_build",
    "oracle", "plan", "plan_board", "plan_profile", "predict", "profile", "read_checkpoint",
    "read_schedule", "report", "ring", "run", "run_build", "run_plan", "scalar_bits", "schedule",
    "verify", "write_build", "write_package", "write_report",
]  # fmt: skip

if TYPE_CHECKING:  # type checkers learn here what each name is
    from fpgapipe.boards.cluster import chain_of, load_cluster
    from fpgapipe.boards.library import load_board
    from fpgapipe.errors import UserError
    from fpgapipe.host.backends.base import StepResult
    from fpgapipe.host.backends.model import ModelBackend
    from fpgapipe.host.backends.simulator import SimulatorBackend
    from fpgapipe.host.backends.torch_backend import TorchBackend
    from fpgapipe.host.build.build import Build, open_build, write_build
    from fpgapipe.host.data.data import load_data
    from fpgapipe.host.data.samples import Dataset, Samples
    from fpgapipe.host.make.boards import BoardList, BoardSheet, describe_board, list_boards
    from fpgapipe.host.make.bringup import BroughtUp, bringup
    from fpgapipe.host.make.build import Built, build, build_board
    from fpgapipe.host.make.checkpoints import Checkpoints, checkpoints
    from fpgapipe.host.make.cluster import ClusterSheet, describe_cluster
    from fpgapipe.host.make.compare import Compared, compare
    from fpgapipe.host.make.coverage import Covered, coverage
    from fpgapipe.host.make.explore import Explored, explore_board
    from fpgapipe.host.make.inspect import Layers, inspect
    from fpgapipe.host.make.oracle import Answers, oracle
    from fpgapipe.host.make.plan import (
        Planned,
        PlannedDegrees,
        PlannedProfile,
        plan,
        plan_board,
        plan_profile,
    )
    from fpgapipe.host.make.report import report
    from fpgapipe.host.make.ring import Ring, ring
    from fpgapipe.host.make.run import Ran, run
    from fpgapipe.host.make.schedule import Timetable, read_schedule, schedule
    from fpgapipe.host.make.target import Reached, explore_target
    from fpgapipe.host.make.verify import Verified, verify
    from fpgapipe.host.package.package import write_package
    from fpgapipe.host.predict.generate import generate
    from fpgapipe.host.predict.generated import Generated
    from fpgapipe.host.predict.predict import predict
    from fpgapipe.host.predict.predictions import Predictions
    from fpgapipe.host.report.pages.page import write_report
    from fpgapipe.host.runtime.checkpoint import Checkpoint, read_checkpoint
    from fpgapipe.host.runtime.measure import Measurement, measure_build
    from fpgapipe.host.runtime.run_summary import RunSummary
    from fpgapipe.host.runtime.runtime import RunOptions, open_backend, run_build
    from fpgapipe.host.runtime.settings import Settings
    from fpgapipe.host.torch_pipeline.profile import Profiled, profile
    from fpgapipe.host.torch_pipeline.run_plan import PlanRan, run_plan
    from fpgapipe.host.weights.export import Exported, export
    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
    from fpgapipe.hw.hls_models.numerics.element_format import ElementFormat
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec, DeviceSpec
    from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
    from fpgapipe.lowering.lower import build_pipeline
    from fpgapipe.lowering.program.pipeline import PipelineProgram
    from fpgapipe.lowering.schedule.schedule import Schedule
    from fpgapipe.lowering.units.step_options import StepOptions, scalar_bits
    from fpgapipe.network.graph import Graph, GraphBuilder
    from fpgapipe.network.initial_values import initial_parameters
    from fpgapipe.network.load import load_network
    from fpgapipe.network.losses import Loss
    from fpgapipe.partition.explore.explorer import Exploration, explore
    from fpgapipe.partition.explore.planned import as_plan, one_link_each
    from fpgapipe.partition.explore.request import Request
    from fpgapipe.partition.explore.smallest import explore_smallest
    from fpgapipe.partition.plan import Plan
    from fpgapipe.partition.schedule.schedule_kinds import make_schedule
    from fpgapipe.partition.schedule.schedule_rules import check_schedule
    from fpgapipe.sim_tb.native.phy import WireSpec
else:

    @functools.cache
    def _modules() -> dict[str, str]:
        """The module of each name, as the imports above say to type checkers."""
        source = __spec__.loader.get_source(__name__)
        found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
        return {alias.name: node.module for node in found for alias in node.names}

    def __getattr__(name: str) -> object:
        """Import a name of ``__all__`` when it is first used."""
        if name not in __all__:
            raise AttributeError(f"module 'fpgapipe' has no attribute {name!r}")
        value = getattr(importlib.import_module(_modules()[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """Names that exist already, and those that are imported on first use."""
        return sorted({*globals(), *__all__})
