"""Parameters of cores: what is refused, and what distinguishes cores."""

import re
from dataclasses import asdict, replace

import numpy as np
import pytest
from pydantic import TypeAdapter

from fpgapipe.hw.hls_models.isa.instructions import ErrorCode
from fpgapipe.hw.hls_models.isa.vector_op import Random, Source, Target, VectorOp
from fpgapipe.hw.hls_models.model.core import CoreError, CoreModel
from fpgapipe.hw.hls_models.model.registers import RegisterMap
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.hls_models.spec.on_chip import OnChipSpec
from fpgapipe.hw.hls_models.spec.systolic import Form, SystolicSpec

SMALL = CoreSpec(
    4, 4, scratchpad=ScratchpadSpec(2, 4096, 8), vector=VectorSpec(1, 1, random=False),
    counters=False,
)  # fmt: skip


def test_digests_of_cores_without_options_stay():
    """Other cores have the digests that they had before there were small ones."""
    assert CoreSpec(4, 4).digest == "655e75d0"
    assert CoreSpec(4, 4, vector=VectorSpec()).digest == "bf7c0a48"
    plain = replace(SMALL, counters=True)
    others = {SMALL.digest, plain.digest, replace(SMALL, vector=VectorSpec(1, 1)).digest}
    wide = replace(SMALL, scratchpad=ScratchpadSpec(2, 4096))
    assert len({*others, wide.digest}) == 4


def test_cores_with_packed_cells_are_others():
    packed = CoreSpec(4, 4, form=Form.PACKED)
    assert packed.digest not in (CoreSpec(4, 4).digest, CoreSpec(4, 8, form=Form.PACKED).digest)
    assert packed.array == SystolicSpec(4, 4, form=Form.PACKED)
    assert TypeAdapter(CoreSpec).validate_json(TypeAdapter(CoreSpec).dump_json(packed)) == packed
    message = "packed cols must be even and at least 4, not 5"
    with pytest.raises(ValueError, match=f"^{message}$"):
        CoreSpec(4, 5, form=Form.PACKED)


@pytest.mark.parametrize("port_bytes", [0, 4, 24, 128])
def test_sizes_of_ports(port_bytes):
    message = f"scratchpad port_bytes must be 8, 16, 32 or 64, not {port_bytes}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ScratchpadSpec(2, 4096, port_bytes)


def test_ports_are_as_wide_as_the_lanes():
    message = "scratchpad port_bytes must be at least 16 (FP32 of 4 vector lanes), not 8"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        replace(SMALL, vector=VectorSpec(4, 1))


def test_few_counters_are_left():
    assert RegisterMap(SMALL).counters == (
        "CYCLES", "INSTRUCTIONS", "LOAD_BYTES", "STORE_BYTES", "GEMM0_VECTORS", "VECTOR_VECTORS",
    )  # fmt: skip
    offsets = {each.name: each.offset for each in RegisterMap(replace(SMALL, counters=True))}
    assert all(each.offset == offsets[each.name] for each in RegisterMap(SMALL))


def test_an_engine_without_random_numbers_stops():
    op = VectorOp((1,), Source(0, (64,)), Target(64, (64,)), test=Random(5, 0, 0))
    for random in (False, True):
        spec = replace(SMALL, vector=VectorSpec(1, 1, random=random))
        model = CoreModel(spec, np.zeros(64, np.uint8))
        if random:
            model._vector(0, op.encoded())
            continue
        with pytest.raises(CoreError) as caught:
            model._vector(0, op.encoded())
        assert caught.value.code is ErrorCode.BAD_FIELD


@pytest.mark.parametrize(
    "ends",
    [
        (LinkEngineSpec(), OnChipSpec()),
        (OnChipSpec((4, 8, 2)), LinkEngineSpec(64, 2, (4, 8, 2))),
        (OnChipSpec(), OnChipSpec()),
    ],
)
def test_files_tell_kinds_of_links(ends):
    core = CoreSpec(8, 8, links=ends)
    adapter = TypeAdapter(CoreSpec)
    assert adapter.validate_json(adapter.dump_json(core)) == core
    assert adapter.validate_python(asdict(core)) == core
