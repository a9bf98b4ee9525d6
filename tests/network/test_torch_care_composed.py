"""Operators that are composed of others: results and gradients in FP64 are PyTorch's."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the torch extra")

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))
try:
    from bench_care import judge
    from care.composed import CASES
finally:
    sys.path.remove(str(BENCH))

from fpgapipe.host.backends.verification import verify  # noqa: E402
from fpgapipe.network.frontends.torch.torch_program import from_torch  # noqa: E402

NOT_BUILT = {"amax and amin", "amin without its axis"}
"""Modules of which a core has not all parts."""

TRAINED = {
    "std of rows",
    "einsum of three",
    "a cell of a GRU",
    "rotary embeddings of complex numbers",
}
"""Modules that are trained in the model here; `test_care` trains the others."""


@pytest.mark.parametrize("name", sorted(CASES))
def test_results_and_gradients(name):
    torch.manual_seed(0)
    case = CASES[name]
    module = case.make()
    graph = from_torch((module, tuple(map(torch.randn, case.shapes))), name="net")
    found = verify(graph, batches=1)
    assert found.verified, found.reason
    assert found.precision == "float64"
    assert found.parameters_equal


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        name if name in TRAINED else pytest.param(name, marks=pytest.mark.slow)
        for name in sorted(CASES)
    ],
)
def test_a_step_in_the_model(name):
    verdict = judge(name, CASES[name])
    wanted = "imported right, step refused" if name in NOT_BUILT else "trained right"
    assert verdict["verdict"] == wanted, verdict
