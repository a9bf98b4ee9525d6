"""Chains of cores: programs, the command, and the same result however they are simulated."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from fpgapipe.host.bench.cluster_bench import (
    LinkDown,
    bench_chain,
    bring_up_links,
    chain_core,
    make_chain,
    open_chain,
    start_programs,
)
from fpgapipe.hw.hls_models.cycles.core_cycles import MemorySpec
from fpgapipe.hw.hls_models.isa.instructions import Instruction, Opcode
from fpgapipe.hw.hls_models.isa.program import Program, encode
from fpgapipe.hw.hls_models.model.link_dma import packet
from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec, check
from fpgapipe.hw.hls_models.spec.core_spec import ScratchpadSpec
from fpgapipe.sim_tb.native.native import StallError
from fpgapipe.sim_tb.native.phy import WireSpec

CORE = chain_core(4, 4, acc_depth=1024, scratchpad=ScratchpadSpec(4, 1 << 19))
LOSSY = WireSpec(bit_error_rate=1e-4, drop_rate=0.02, duplicate_rate=0.02, seed=5)


def test_chain_multiplies_by_every_matrix():
    chain = make_chain(CORE, 3, 2, 8, 64)
    for program in chain.programs:
        check(encode(program.instructions), SequencerSpec.of(CORE))
    images = chain.images(seed=1)
    operands = [program.tensors["w"].decode(images[n]) for n, program in enumerate(chain.programs)]
    expected = chain.programs[0].tensors["x"].decode(images[0]).reshape(8, 64)
    for weights in operands:
        expected = expected @ weights.reshape(64, 64).T
    chain.run_model(images)
    result = chain.programs[2].result.decode(images[2]).reshape(8, 64)
    assert np.abs(result - expected).max() < 0.05 * np.abs(expected).max()
    kinds = [item.opcode for item in chain.programs[1].instructions]
    assert (kinds.count(Opcode.RECEIVE), kinds.count(Opcode.SEND)) == (2, 2)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((0, 1, 8, 64), "a chain must have a device and a round or more, not 0, 1"),
        ((1, 0, 8, 64), "a chain must have a device and a round or more, not 1, 0"),
        ((1, 1, 8, 40), "a chain's width must be a multiple of 32, not 40"),
    ],
)
def test_refuses_chains(shape, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make_chain(CORE, *shape)


def test_refuses_options(cli):
    code, out, err = cli("bench", "cluster", "--width", "40")
    assert (code, out) == (2, "")
    assert err == "error: a chain's width must be a multiple of 32, not 40\n"


@pytest.mark.sim
@pytest.mark.slow
def test_result_is_always_the_same():
    """Memories and the cycle of each end, over wires that lose and damage frames."""
    chain = make_chain(CORE, 4, 3, 16, 64)
    one = bench_chain(chain, wire=LOSSY, threads=1)
    assert one.matches_model
    assert one.replays > 0
    assert one.words == 3 * 3 * (16 * 64 * 2 // 64 + 1)
    for options in ({"threads": 2}, {"threads": 4, "window_cycles": 37}, {"sample_cycles": 500}):
        other = bench_chain(chain, wire=LOSSY, **options)
        assert other.matches_model
        assert (other.digest, other.cycles) == (one.digest, one.cycles)
    last = {sample.node: sample.counters for sample in other.samples}
    assert last[3]["LINK0_RX_WORDS"] > 60
    assert last[3]["GEMM0_VECTORS"] > 0
    assert len(other.samples) > 4 * one.cycles // 1000
    other = bench_chain(chain, wire=WireSpec(seed=5), threads=2)
    assert other.matches_model
    assert other.cycles < one.cycles


@pytest.mark.sim
@pytest.mark.slow
def test_stall_says_who_waits_for_what():
    chain = make_chain(CORE, 2, 2, 8, 32)
    never = packet(0, 64, stream=9, channel=1)
    *before, end = chain.programs[0].instructions
    waits = [
        Instruction(Opcode.RECEIVE, (), (12,), 1, never),
        Instruction(Opcode.LOAD, (12,), (), 0, before[0].body),
        Instruction(Opcode.STORE, (13,), (), 0, before[0].body),
    ]
    first = Program.of([*before, *waits, end])
    chain.programs[0] = replace(chain.programs[0], instructions=first)
    images = chain.images(seed=1)
    with open_chain(chain, images, MemorySpec(), WireSpec(), threads=2) as cluster:
        bring_up_links(cluster)
        start_programs(cluster, chain.programs)
        with pytest.raises(StallError) as caught:
            cluster.run(stall_cycles=4000)
    number = len(first)
    text = str(caught.value)
    for line in (
        r"^cycle \d+: nothing has moved for 4000 cycles$",
        r"^device 0: interrupt low$",
        r"^  memory bus: active last at cycle \d+, 0 reads and 0 writes in flight$",
        rf"^  RECEIVE\[1\]: instruction {number - 4} \(RECEIVE from link 1, channel 1, stream 9\) "
        "is under way$",
        rf"^  LOAD: instruction {number - 3} \(LOAD\) waits for semaphore 12, which instruction "
        rf"{number - 4} \(RECEIVE from link 1, channel 1, stream 9\) signals$",
        rf"^  STORE: instruction {number - 2} \(STORE\) waits for semaphore 13, which nothing will "
        "signal$",
        r"^  link 1: UP, 18 words have gone in and 0 have come out$",
        r"^device 1: interrupt high$",
        r"^  no program runs \(done\)$",
        r"^  link 0: UP, 0 words have gone in and 18 have come out$",
    ):
        assert re.search(line, text, re.M), f"{line}\n{text}"


@pytest.mark.sim
@pytest.mark.slow
def test_link_that_does_not_come_up_is_named():
    chain = make_chain(CORE, 2, 1, 8, 32)
    dead = WireSpec(down=((0, 1 << 40),))
    with (
        open_chain(chain, chain.images(seed=1), MemorySpec(), dead) as cluster,
        pytest.raises(LinkDown, match=r"^link 1 of device 0 did not come up: it is in HELLO$"),
    ):
        bring_up_links(cluster)


@pytest.mark.sim
@pytest.mark.slow
def test_command(cli, tmp_path):
    options = ("--rows", "4", "--cols", "4", "--devices", "2", "--rounds", "2", "--vectors", "8")
    trace = tmp_path / "trace.json"
    code, out, _ = cli(
        *("bench", "cluster", *options, "--width", "32", "--json"),
        *("--trace", trace, "--sample-cycles", "300"),
    )
    assert code == 0
    found = json.loads(out)
    assert found["matches_model"] is True
    assert found["link_words"] == 2 * (8 * 32 * 2 // 64 + 1)
    names = {each["name"] for each in json.loads(trace.read_text())["traceEvents"]}
    assert {"GEMM0_BUSY", "LINK0_RX_WORDS", "LOAD_BYTES"} <= names
    code, out, _ = cli("bench", "cluster", *options, "--width", "32")
    assert re.search(r"^matches model +yes$", out, re.M)


def test_a_trace_that_cannot_be_written_is_refused_before_the_run(cli, tmp_path):
    path = tmp_path / "no folder" / "trace.json"
    assert cli("bench", "cluster", "--trace", path) == (
        2,
        "",
        f"error: {path}: cannot be written: No such file or directory\n",
    )
