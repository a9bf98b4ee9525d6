"""fpgapipe plans, generates, simulates and trains pipelines over several FPGAs.

The names in ``__all__`` are the Python interface (docs/api.md). Each name is imported when it is
first used, so ``import fpgapipe`` is quick and needs none of the libraries that the names use.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "Answers",
    "BoardList",
    "BoardSheet",
    "BroughtUp",
    "Build",
    "Built",
    "ClusterSheet",
    "ClusterSpec",
    "Compared",
    "CoreSpec",
    "Covered",
    "Dataset",
    "DeviceSpec",
    "ElementFormat",
    "Exploration",
    "Graph",
    "GraphBuilder",
    "Layers",
    "LinkEngineSpec",
    "Loss",
    "Measurement",
    "MemorySpec",
    "ModelBackend",
    "PipelineProgram",
    "Plan",
    "Planned",
    "PlannedDegrees",
    "PlannedProfile",
    "Ran",
    "Request",
    "Ring",
    "RunOptions",
    "RunSummary",
    "Samples",
    "Schedule",
    "ScratchpadSpec",
    "Settings",
    "SimulatorBackend",
    "StepOptions",
    "StepResult",
    "Timetable",
    "TorchBackend",
    "UserError",
    "VectorSpec",
    "Verified",
    "WireSpec",
    "__version__",
    "as_plan",
    "bringup",
    "build",
    "build_pipeline",
    "chain_of",
    "check_schedule",
    "compare",
    "coverage",
    "describe_board",
    "describe_cluster",
    "explore",
    "explore_smallest",
    "initial_parameters",
    "inspect",
    "list_boards",
    "load_board",
    "load_cluster",
    "load_data",
    "load_network",
    "make_schedule",
    "measure_build",
    "one_link_each",
    "open_backend",
    "open_build",
    "oracle",
    "plan",
    "plan_profile",
    "read_schedule",
    "report",
    "ring",
    "run",
    "run_build",
    "scalar_bits",
    "schedule",
    "verify",
    "write_build",
    "write_package",
    "write_report",
]

if TYPE_CHECKING:  # type checkers learn here what each name is
    from fpgapipe.boards.cluster import chain_of as chain_of
    from fpgapipe.boards.cluster import load_cluster as load_cluster
    from fpgapipe.boards.library import load_board as load_board
    from fpgapipe.errors import UserError as UserError
    from fpgapipe.host.backends.base import StepResult as StepResult
    from fpgapipe.host.backends.model import ModelBackend as ModelBackend
    from fpgapipe.host.backends.simulator import SimulatorBackend as SimulatorBackend
    from fpgapipe.host.backends.torch_backend import TorchBackend as TorchBackend
    from fpgapipe.host.build.build import Build as Build
    from fpgapipe.host.build.build import open_build as open_build
    from fpgapipe.host.build.build import write_build as write_build
    from fpgapipe.host.data.data import load_data as load_data
    from fpgapipe.host.data.samples import Dataset as Dataset
    from fpgapipe.host.data.samples import Samples as Samples
    from fpgapipe.host.make.boards import BoardList as BoardList
    from fpgapipe.host.make.boards import BoardSheet as BoardSheet
    from fpgapipe.host.make.boards import describe_board as describe_board
    from fpgapipe.host.make.boards import list_boards as list_boards
    from fpgapipe.host.make.bringup import BroughtUp as BroughtUp
    from fpgapipe.host.make.bringup import bringup as bringup
    from fpgapipe.host.make.build import Built as Built
    from fpgapipe.host.make.build import build as build
    from fpgapipe.host.make.cluster import ClusterSheet as ClusterSheet
    from fpgapipe.host.make.cluster import describe_cluster as describe_cluster
    from fpgapipe.host.make.compare import Compared as Compared
    from fpgapipe.host.make.compare import compare as compare
    from fpgapipe.host.make.coverage import Covered as Covered
    from fpgapipe.host.make.coverage import coverage as coverage
    from fpgapipe.host.make.csv_schedule import read_schedule as read_schedule
    from fpgapipe.host.make.inspect import Layers as Layers
    from fpgapipe.host.make.inspect import inspect as inspect
    from fpgapipe.host.make.oracle import Answers as Answers
    from fpgapipe.host.make.oracle import oracle as oracle
    from fpgapipe.host.make.plan import Planned as Planned
    from fpgapipe.host.make.plan import PlannedDegrees as PlannedDegrees
    from fpgapipe.host.make.plan import PlannedProfile as PlannedProfile
    from fpgapipe.host.make.plan import plan as plan
    from fpgapipe.host.make.plan import plan_profile as plan_profile
    from fpgapipe.host.make.report import report as report
    from fpgapipe.host.make.ring import Ring as Ring
    from fpgapipe.host.make.ring import ring as ring
    from fpgapipe.host.make.run import Ran as Ran
    from fpgapipe.host.make.run import run as run
    from fpgapipe.host.make.schedule import Timetable as Timetable
    from fpgapipe.host.make.schedule import schedule as schedule
    from fpgapipe.host.make.verify import Verified as Verified
    from fpgapipe.host.make.verify import verify as verify
    from fpgapipe.host.package.package import write_package as write_package
    from fpgapipe.host.report.pages.page import write_report as write_report
    from fpgapipe.host.runtime.measure import Measurement as Measurement
    from fpgapipe.host.runtime.measure import measure_build as measure_build
    from fpgapipe.host.runtime.runtime import RunOptions as RunOptions
    from fpgapipe.host.runtime.runtime import RunSummary as RunSummary
    from fpgapipe.host.runtime.runtime import open_backend as open_backend
    from fpgapipe.host.runtime.runtime import run_build as run_build
    from fpgapipe.host.runtime.settings import Settings as Settings
    from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec as MemorySpec
    from fpgapipe.hw.hls_models.numerics.element_format import ElementFormat as ElementFormat
    from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec as CoreSpec
    from fpgapipe.hw.hls_models.spec.core_spec import ScratchpadSpec as ScratchpadSpec
    from fpgapipe.hw.hls_models.spec.core_spec import VectorSpec as VectorSpec
    from fpgapipe.hw.hls_models.spec.device import ClusterSpec as ClusterSpec
    from fpgapipe.hw.hls_models.spec.device import DeviceSpec as DeviceSpec
    from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec as LinkEngineSpec
    from fpgapipe.lowering.program.pipeline import PipelineProgram as PipelineProgram
    from fpgapipe.lowering.program.pipeline import build_pipeline as build_pipeline
    from fpgapipe.lowering.schedule.schedule import Schedule as Schedule
    from fpgapipe.lowering.units.step_options import StepOptions as StepOptions
    from fpgapipe.lowering.units.step_options import scalar_bits as scalar_bits
    from fpgapipe.network.graph import Graph as Graph
    from fpgapipe.network.graph import GraphBuilder as GraphBuilder
    from fpgapipe.network.initial_values import initial_parameters as initial_parameters
    from fpgapipe.network.load import load_network as load_network
    from fpgapipe.network.losses import Loss as Loss
    from fpgapipe.partition.explore.explorer import Exploration as Exploration
    from fpgapipe.partition.explore.explorer import Request as Request
    from fpgapipe.partition.explore.explorer import explore as explore
    from fpgapipe.partition.explore.planned import as_plan as as_plan
    from fpgapipe.partition.explore.planned import one_link_each as one_link_each
    from fpgapipe.partition.explore.smallest import explore_smallest as explore_smallest
    from fpgapipe.partition.plan import Plan as Plan
    from fpgapipe.partition.schedule.schedule_kinds import make_schedule as make_schedule
    from fpgapipe.partition.schedule.schedule_rules import check_schedule as check_schedule
    from fpgapipe.sim_tb.native.phy import WireSpec as WireSpec
else:
    _MODULES = {
        "fpgapipe.boards.cluster": ("chain_of", "load_cluster"),
        "fpgapipe.boards.library": ("load_board",),
        "fpgapipe.errors": ("UserError",),
        "fpgapipe.host.backends.base": ("StepResult",),
        "fpgapipe.host.backends.model": ("ModelBackend",),
        "fpgapipe.host.backends.simulator": ("SimulatorBackend",),
        "fpgapipe.host.backends.torch_backend": ("TorchBackend",),
        "fpgapipe.host.build.build": ("Build", "open_build", "write_build"),
        "fpgapipe.host.data.data": ("load_data",),
        "fpgapipe.host.data.samples": ("Dataset", "Samples"),
        "fpgapipe.host.runtime.measure": ("Measurement", "measure_build"),
        "fpgapipe.lowering.program.pipeline": ("PipelineProgram", "build_pipeline"),
        "fpgapipe.host.make.plan": (
            "Planned",
            "PlannedDegrees",
            "PlannedProfile",
            "plan",
            "plan_profile",
        ),
        "fpgapipe.host.make.build": ("Built", "build"),
        "fpgapipe.host.make.csv_schedule": ("read_schedule",),
        "fpgapipe.host.package.package": ("write_package",),
        "fpgapipe.host.make.schedule": ("Timetable", "schedule"),
        "fpgapipe.host.make.inspect": ("Layers", "inspect"),
        "fpgapipe.host.make.coverage": ("Covered", "coverage"),
        "fpgapipe.host.make.verify": ("Verified", "verify"),
        "fpgapipe.host.make.compare": ("Compared", "compare"),
        "fpgapipe.host.make.oracle": ("Answers", "oracle"),
        "fpgapipe.host.make.boards": ("BoardList", "BoardSheet", "describe_board", "list_boards"),
        "fpgapipe.host.make.cluster": ("ClusterSheet", "describe_cluster"),
        "fpgapipe.host.make.report": ("report",),
        "fpgapipe.host.make.bringup": ("BroughtUp", "bringup"),
        "fpgapipe.host.make.run": ("Ran", "run"),
        "fpgapipe.host.make.ring": ("Ring", "ring"),
        "fpgapipe.host.report.pages.page": ("write_report",),
        "fpgapipe.host.runtime.runtime": ("RunOptions", "RunSummary", "open_backend", "run_build"),
        "fpgapipe.lowering.units.step_options": ("StepOptions", "scalar_bits"),
        "fpgapipe.host.runtime.settings": ("Settings",),
        "fpgapipe.hw.hls_models.cycles.core_cycles": ("MemorySpec",),
        "fpgapipe.hw.hls_models.numerics.element_format": ("ElementFormat",),
        "fpgapipe.hw.hls_models.spec.core_spec": ("CoreSpec", "ScratchpadSpec", "VectorSpec"),
        "fpgapipe.hw.hls_models.spec.device": ("ClusterSpec", "DeviceSpec"),
        "fpgapipe.hw.hls_models.spec.link": ("LinkEngineSpec",),
        "fpgapipe.partition.explore.explorer": ("Exploration", "Request", "explore"),
        "fpgapipe.network.graph": ("Graph", "GraphBuilder"),
        "fpgapipe.network.initial_values": ("initial_parameters",),
        "fpgapipe.network.load": ("load_network",),
        "fpgapipe.network.losses": ("Loss",),
        "fpgapipe.partition.plan": ("Plan",),
        "fpgapipe.partition.explore.planned": ("as_plan", "one_link_each"),
        "fpgapipe.lowering.schedule.schedule": ("Schedule",),
        "fpgapipe.partition.schedule.schedule_kinds": ("make_schedule",),
        "fpgapipe.partition.schedule.schedule_rules": ("check_schedule",),
        "fpgapipe.partition.explore.smallest": ("explore_smallest",),
        "fpgapipe.sim_tb.native.phy": ("WireSpec",),
    }
    _MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

    def __getattr__(name: str) -> object:
        """Import a name of ``__all__`` when it is first used."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'fpgapipe' has no attribute {name!r}")
        value = getattr(importlib.import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """Names that exist already, and those that are imported on first use."""
        return sorted({*globals(), *__all__})
