"""Proofs of packed cells, and that they see faults."""

import pytest

from fpgapipe.hw.rtl.gemm import packed
from fpgapipe.hw.rtl.lib.primitives import model_of
from fpgapipe.sim_tb.formal.formal import ProofError, prove
from fpgapipe.sim_tb.formal.packed_proofs import packed_dsp_proof

MODEL = model_of("DSP48E2")


@pytest.mark.sim
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
def test_proves(is_first, tmp_path):
    prove(packed_dsp_proof(is_first), tmp_path, depth=2, models={"dsp48e2.v": MODEL})


FAULTS = {
    "no double buffer": ("if (CEA2) a2 <=", "if (CEAD) a2 <=", "A2 is the next left weight"),
    "active too soon": ("if (CEAD) ad <=", "ad <=", "AD has both active weights"),
    "no cascade": ("OPMODE[4] ? {16'd0, PCIN}", "1'b0 ? {16'd0, PCIN}", "the lower field is"),
    "two products": ("if (CEP)", "", "the lower field is"),
}


@pytest.mark.sim
@pytest.mark.parametrize("fault", FAULTS)
def test_sees(fault, tmp_path):
    right, wrong, message = FAULTS[fault]
    assert MODEL.count(right) == 1
    with pytest.raises(ProofError, match=message):
        prove(
            *(packed_dsp_proof(), tmp_path),
            depth=2,
            models={"dsp48e2.v": MODEL.replace(right, wrong)},
        )


@pytest.mark.sim
def test_sees_a_bias_that_is_too_small(tmp_path, monkeypatch):
    """A bias of half of the field's half does not keep the lower field from being negative."""
    small = packed._PARAMETERS | {"RND": packed.Const(packed.BIAS // 2, packed.SUM_BITS)}
    monkeypatch.setattr(packed, "_PARAMETERS", small)
    with pytest.raises(ProofError, match="the lower field is the left sum and the bias"):
        prove(packed_dsp_proof(is_first=True), tmp_path, depth=2, models={"dsp48e2.v": MODEL})
