"""The resource model against what Yosys counted in the gateware."""

import dataclasses
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from fpgapipe.hw.hls_models.model.sequencer import SequencerSpec
from fpgapipe.hw.hls_models.resources.control_counts import (
    control,
    narrow_sequencer,
    register_registers,
    sequencer_luts,
    sequencer_registers,
)
from fpgapipe.hw.hls_models.resources.core_counts import (
    COEFFICIENTS,
    Resources,
    links,
    memory,
    operand_reader,
    vector_engine,
)
from fpgapipe.hw.hls_models.resources.core_resources import (
    CoreOnPart,
    array_resources,
    block_resources,
    column_resources,
    core_resources,
)
from fpgapipe.hw.hls_models.resources.scratchpad_counts import scratchpad_logic, scratchpad_memory
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec, VectorSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec
from fpgapipe.hw.hls_models.spec.systolic import Form

BENCH = Path(__file__).parents[2] / "bench/bench_resources.py"


def placed(rows, cols, kind="DSP48E2", **options):
    core = CoreSpec(rows, cols, scratchpad=ScratchpadSpec(4, 1 << 16), **options)
    return CoreOnPart(core, kind)


@pytest.mark.parametrize(
    ("kind", "rows", "cols", "lut", "ff"),
    [  # Yosys 0.70 on SystolicArray; shift registers count as LUTs, a CCU2C as two
        ("DSP48E1", 8, 8, 474, 1_243),
        ("DSP48E1", 16, 32, 2_495, 9_682),
        ("MULT18X18D", 8, 8, 1_647, 4_998),
        ("MULT18X18D", 16, 32, 12_183, 44_178),
    ],
)
def test_arrays_on_other_parts(kind, rows, cols, lut, ff):
    found = array_resources(placed(rows, cols, kind))
    aside = cols * (16 + (rows - 1).bit_length())  # sums put aside, which a core has elsewhere
    assert found.dsp == rows * cols
    assert found.lut + aside == pytest.approx(lut, rel=0.1)
    assert found.ff + aside == pytest.approx(ff, rel=0.1)


@pytest.mark.parametrize(
    ("rows", "cols", "lut", "ff"),
    [  # Yosys 0.70 on SystolicCells, -family xcup
        (4, 4, 36, 216),
        (8, 8, 164, 582),
        (16, 8, 330, 988),
        (32, 8, 756, 1_963),
        (32, 32, 2_112, 6_331),
        (32, 64, 3_920, 12_195),
    ],
)
def test_arrays_of_packed_cells(rows, cols, lut, ff):
    found = array_resources(placed(rows, cols, form=Form.PACKED))
    assert found.dsp == rows * cols // 2
    assert found.lut == pytest.approx(lut, abs=4)
    assert found.ff == pytest.approx(ff, rel=0.005)


@pytest.mark.parametrize("kind", ["DSP48E1", "DSP58", "MULT18X18D"])
def test_other_parts_have_no_packed_cells(kind):
    with pytest.raises(ValueError, match=f"^packed cells need parts with DSP48E2, not {kind}$"):
        placed(4, 4, kind, form=Form.PACKED)


# Yosys 0.70, -family xcup: sums of blocks counted one by one, by bench/bench_resources.py.
COUNTED = {
    "4x4": (
        CoreSpec(4, 4, 1, 64, ScratchpadSpec(2, 4096), 16),
        Resources(33131, 36366, 32.0, 0, 16),
    ),
    "8x8": (
        CoreSpec(8, 8, 1, 512, ScratchpadSpec(2, 32768), 32),
        Resources(34604, 39761, 68.0, 0, 64),
    ),
    "8x16": (
        CoreSpec(8, 16, 1, 256, ScratchpadSpec(2, 16384), 64),
        Resources(40161, 48261, 71.5, 0, 128),
    ),
    "16x16": (
        CoreSpec(16, 16, 1, 1024, ScratchpadSpec(4, 65536), 64),
        Resources(48148, 58401, 110.5, 0, 256),
    ),
    "32x32": (
        CoreSpec(32, 32, 1, 1024, ScratchpadSpec(4, 262144), 64),
        Resources(75757, 114895, 316.5, 0, 1024),
    ),
    "two of 4x4": (
        CoreSpec(4, 4, 2, 64, ScratchpadSpec(2, 4096), 16),
        Resources(55858, 60014, 64.0, 0, 32),
    ),
    "4x4, 4 lanes": (
        CoreSpec(4, 4, 1, 64, ScratchpadSpec(2, 4096), 16, vector=VectorSpec(4, 2)),
        Resources(58098, 62873, 38.5, 0, 46),
    ),
    "8x8, 8 lanes": (
        CoreSpec(8, 8, 1, 512, ScratchpadSpec(2, 32768), 32, vector=VectorSpec(8, 2)),
        Resources(67888, 75702, 76.5, 0, 110),
    ),
    "16x16, 16 lanes": (
        CoreSpec(16, 16, 1, 1024, ScratchpadSpec(4, 65536), 64, vector=VectorSpec(16, 4)),
        Resources(101853, 117944, 118.5, 0, 348),
    ),
    "two of 4x4, 2 lanes": (
        CoreSpec(4, 4, 2, 64, ScratchpadSpec(2, 4096), 16, vector=VectorSpec(2, 1)),
        Resources(78087, 81017, 67.5, 0, 47),
    ),
}


def blocks_of(spec):
    """The blocks of a core on UltraScale+, where the scratchpad is block RAM."""
    return block_resources(CoreOnPart(spec, "DSP48E2"))


def total_of(spec):
    return sum(blocks_of(spec).values(), Resources())


# The cores of bench/bench_whole_cores.py, as it counts them. The 4x4, the small 4x4, the 8x8 and
# the 32x64 were counted before an address generator took 65 LUTs more, for the sake of the clock.
WHOLE = {
    "4x4": Resources(33270, 36338, 32.0, 0, 16),
    "4x4, 4 lanes": Resources(58364, 62869, 38.5, 0, 46),
    "4x4, small": Resources(23403, 33365, 24.5, 0, 29),
    "8x8, two links": Resources(63074, 67941, 142.0, 0, 64),
    "two of 4x8, few counters": Resources(64205, 66385, 143.0, 0, 64),
    "16x16, packed, two ports": Resources(101639, 107839, 159.0, 0, 174),
    "32x32, packed": Resources(106804, 116018, 118.5, 0, 604),
    "32x64, packed, 8 lanes": Resources(104168, 113330, 133.0, 0, 1070),
}


@pytest.fixture(scope="module")
def whole_cores():
    """Names of the bench that counts whole cores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCH.parent)
        yield runpy.run_path(str(BENCH.with_name("bench_whole_cores.py")))


def test_all_whole_cores_of_the_bench_were_counted(whole_cores):
    assert set(WHOLE) == set(whole_cores["CORES"])


@pytest.mark.parametrize(("name", "counted"), WHOLE.items(), ids=WHOLE)
def test_whole_cores(name, counted, whole_cores):
    family, spec = whole_cores["CORES"][name]
    placed_core = CoreOnPart(spec, whole_cores["DSP_KINDS"][family])
    found = sum(block_resources(placed_core).values(), Resources())
    assert (found.bram36, found.dsp) == (counted.bram36, counted.dsp)
    assert found.lut == pytest.approx(counted.lut, rel=0.02)
    assert found.ff == pytest.approx(counted.ff, rel=0.01)
    assert core_resources(placed_core) == found.rounded()


def test_columns_share_a_memory():
    """1,024 accumulators of 11 columns are 352 bits wide: 20 blocks of 18 kbit, 18 bits each."""
    core = placed(32, 11)
    assert block_resources(core)["accumulators"].bram36 == pytest.approx(10)
    assert column_resources(core).bram36 == pytest.approx(10 / 11)


def test_ends_of_links_have_their_own_memories():
    """A word of 512 bits has 29 blocks of 1,024 rows, in beats of 128 bits 30, of 256 rows 15."""
    few, many = (
        placed(4, 4, links=(LinkEngineSpec(16, frame_words, slots),))
        for frame_words, slots in ((4, (16, 16, 8)), (16, (16, 16, 4)))
    )
    assert block_resources(many)["links"].bram36 - block_resources(few)["links"].bram36 == 14.5


def test_deep_memories():
    """A block of 18 kbit has at most 16 Ki rows."""
    assert memory(1 << 15, 8).bram36 == 8
    assert scratchpad_memory(1, 1 << 22).bram36 == 2 * 512
    assert scratchpad_memory(2, 4096) == Resources(lut=4 * 512, ff=4 * 512)  # a LUT for each bit


@pytest.mark.parametrize(("spec", "counted"), COUNTED.values(), ids=COUNTED)
def test_cores(spec, counted):
    found = total_of(spec)
    assert found.dsp == counted.dsp
    assert found.lut == pytest.approx(counted.lut, rel=0.02)
    assert found.ff == pytest.approx(counted.ff, rel=0.01)
    assert found.bram36 == counted.bram36


def test_memories():
    assert memory(32, 512) == Resources(lut=296, ff=512)
    assert memory(64, 128) == Resources(lut=152, ff=128)
    assert memory(256, 512).bram36 == 7.5
    assert memory(512, 256).bram36 == 4
    assert memory(1024, 1024).bram36 == 28.5
    assert memory(1024, 512, 128).bram36 == 15  # 15 bytes of 9 bits for each 128 bits
    assert memory(1024, 512, 512).bram36 == 14.5


def test_a_column_more_is_a_column_more():
    """The writer of results rounds 32 columns at once."""
    wide, narrow = core_resources(placed(16, 17)), core_resources(placed(16, 16))
    column = column_resources(placed(16, 16)) + COEFFICIENTS["result part"].resources
    assert wide.dsp - narrow.dsp == column.dsp
    assert wide.lut - narrow.lut == pytest.approx(column.lut, rel=0.05)


@pytest.mark.parametrize(
    ("lanes", "function_lanes", "counted"),
    [  # sums of lanes, ways, reader, writer, random numbers and function units, counted one by one
        (2, 1, Resources(12838, 14108, 3.5, 0, 15)),
        (4, 2, Resources(17946, 19663, 6.5, 0, 30)),
        (8, 2, Resources(26262, 29079, 8.5, 0, 46)),
        (16, 4, Resources(45451, 51511, 8, 0, 92)),
    ],
)
def test_vector_engines(lanes, function_lanes, counted):
    found = vector_engine(lanes, function_lanes)
    assert (found.dsp, found.bram36) == (counted.dsp, counted.bram36)
    assert found.lut == pytest.approx(counted.lut, rel=0.01)
    assert found.ff == pytest.approx(counted.ff, rel=0.01)


@pytest.mark.parametrize(
    ("lanes", "lut", "ff"),
    [  # what reader and writer are larger by with MXINT8
        (2, 3692 - 3062 + 3739 - 1691, 3544 - 3484 + 3160 - 2603),
        (16, 5829 - 3282 + 3819 - 1954, 4728 - 4388 + 3381 - 2824),
    ],
)
def test_blocks_of_vectors(lanes, lut, ff):
    plain, found = vector_engine(lanes, 1), vector_engine(lanes, 1, mx=True)
    assert found.lut - plain.lut == pytest.approx(lut, rel=0.01)
    assert found.ff - plain.ff == pytest.approx(ff, rel=0.01)


@pytest.mark.parametrize(
    ("banks", "bank_bytes", "engines", "lut", "ff"),
    [  # each counted as a whole
        (2, 4096, 1, 10254, 6496),
        (2, 4096, 2, 15764, 9330),
        (2, 4096, 3, 23487, 12174),
        (2, 32768, 1, 8232, 4478),
        (2, 32768, 2, 13743, 7330),
        (4, 65536, 1, 12690, 6174),
        (4, 65536, 2, 19433, 10196),
    ],
)
def test_scratchpads(banks, bank_bytes, engines, lut, ff):
    turned = 2 * (engines if (banks, bank_bytes) == (2, 4096) else 1)
    found = scratchpad_logic(banks, bank_bytes, engines, turned_reads=turned)
    found += scratchpad_memory(banks, bank_bytes)
    assert found.lut == pytest.approx(lut, rel=0.02)
    assert found.ff == pytest.approx(ff, rel=0.005)


@pytest.mark.parametrize(
    ("banks", "engines", "port_bytes", "lut", "ff", "bram36"),
    [  # banks of 16 KiB, each counted as a whole
        (2, 1, 8, 1233, 1150, 8),
        (2, 2, 8, 1893, 1591, 8),
        (2, 2, 16, 3500, 2402, 8),
        (4, 2, 16, 5063, 3140, 16),
        (2, 2, 32, 6780, 4033, 16),
    ],
)
def test_scratchpads_with_narrow_ports(banks, engines, port_bytes, lut, ff, bram36):
    found = scratchpad_logic(banks, 1 << 14, engines, port_bytes)
    found += scratchpad_memory(banks, 1 << 14, port_bytes)
    assert found.lut == pytest.approx(lut, rel=0.09)
    assert found.ff == pytest.approx(ff, rel=0.005)
    assert found.bram36 == bram36


@pytest.mark.parametrize(
    ("rows", "port_bytes", "lut", "ff", "bram36"),
    [  # sums of transposer, quantiser and reader, without the address generator
        (4, 8, 327 + 225 + 310, 206 + 225 + 286, 2),
        (4, 16, 1012 + 366 + 421, 340 + 232 + 382, 4),
        (16, 16, 1012 + 734 + 517, 340 + 844 + 478, 4),
    ],
)
def test_narrow_readers(rows, port_bytes, lut, ff, bram36):
    found = operand_reader(rows, port_bytes) + COEFFICIENTS["address generator"].resources * -1
    assert found.lut == pytest.approx(lut, rel=0.01)
    assert found.ff == pytest.approx(ff, rel=0.01)
    assert found.bram36 == bram36


@pytest.mark.slow
def test_yosys_still_counts_the_same():
    command = [sys.executable, str(BENCH), "--only", "4x4", "--blocks", "quantiser", "datapath"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    blocks = json.loads(text)["blocks"]
    assert blocks["quantiser"]["resources"]["lut"] == pytest.approx(1949, rel=0.05)
    assert blocks["datapath 4_4_64"]["resources"]["dsp"] == 16
    model = blocks_of(CoreSpec(4, 4, 1, 64))
    expected = model["arrays"] + model["accumulators"]
    for name in ("lut", "ff"):
        found = blocks["datapath 4_4_64"]["resources"][name]
        assert found == pytest.approx(getattr(expected, name), rel=0.05)


@pytest.mark.slow
def test_yosys_counts_a_whole_core():
    command = [sys.executable, str(BENCH.with_name("bench_whole_cores.py")), "--cores", "4x4"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = json.loads(text)["cores"]["4x4"]["core"]
    counted = WHOLE["4x4"]
    for name, each in found.items():
        assert each["yosys"] == pytest.approx(getattr(counted, name), rel=0.01)


@pytest.mark.parametrize(
    ("bus_bytes", "lut", "ff", "bram36"),
    [(16, 231 + 141, 71 + 95, 9), (32, 360 + 142, 72 + 96, 17), (64, 615 + 141, 71 + 95, 32)],
)
def test_two_memory_ports(bus_bytes, lut, ff, bram36):
    """The two interleavers, counted one by one."""
    spec = CoreSpec(8, 16, 1, 256, ScratchpadSpec(2, 1 << 14), bus_bytes)
    alone, found = total_of(spec), total_of(dataclasses.replace(spec, memory_ports=2))
    assert found.lut - alone.lut == pytest.approx(lut, abs=2)
    assert found.ff - alone.ff == pytest.approx(ff, abs=2)
    assert found.bram36 - alone.bram36 == bram36


def test_links_are_counted():
    """Blocks of one link on a bus of 64 bytes, counted one by one, and what others grow by."""
    spec = CoreSpec(8, 16, 1, 256, ScratchpadSpec(2, 1 << 14), 64)
    linked = dataclasses.replace(spec, links=(LinkEngineSpec(),))
    alone, found = total_of(spec), total_of(linked)
    # Link, send, receive, shared ports of reads and writes, arbiters of writers and readers,
    # sequencer, registers, clock.
    lut = 7 + 4825 + 3246 + 2409 + 37 + 575 + 695
    lut += (195 - 191) + (4180 - 2839) + (2027 - 771)
    ff = 45 + 4654 + 3643 + 3102 + 4 + 4 + 104
    ff += (184 - 182) + (7450 - 5981) + (2285 - 1356)
    assert found.lut - alone.lut == pytest.approx(lut, rel=0.02)
    assert found.ff - alone.ff == pytest.approx(ff, rel=0.02)
    assert found.bram36 - alone.bram36 == 29.5 + 7.5
    wide = links((LinkEngineSpec(64),), 64)
    assert wide.lut - links((LinkEngineSpec(),), 64).lut == pytest.approx(6920 - 4825, rel=0.01)
    assert wide.ff - links((LinkEngineSpec(),), 64).ff == pytest.approx(7052 - 4654, rel=0.01)
    assert set(blocks_of(linked)) - set(blocks_of(spec)) == {"links"}


# Counted by Yosys 0.70, synth_xilinx -family xc7, modules kept apart: LUTs, flip-flops, blocks of
# 36 kbit. The first number of each is the width of the bus; 64 is for whole words on a bus of 8.
NARROW_SEQUENCERS = {
    (4, True, 0): (2023, 6949, 2.5),
    (8, True, 0): (1974, 7087, 5),
    (16, True, 0): (2435, 7320, 4),
    (64, True, 0): (3625, 8625, 0),
    (4, False, 0): (1761, 4596, 2),
    (8, False, 0): (1738, 4674, 4),
    (16, False, 0): (2025, 4799, 4),
    (64, False, 0): (3043, 5856, 0),
    (4, True, 1): (2892, 8098, 3.5),
    (8, True, 1): (2814, 8244, 7),
    (16, True, 1): (3971, 9103, 0),
    (64, True, 1): (5143, 10166, 0),
}


@pytest.mark.parametrize("case", [each for each in NARROW_SEQUENCERS if each[0] < 64], ids=str)
def test_narrow_sequencers_are_as_counted(case):
    bus_bytes, has_vector, num_links = case
    link = LinkEngineSpec(phy_bytes=4, frame_words=4, slots=(4, 4, 2), port_bytes=4)
    spec = SequencerSpec.sized(1, (link,) * num_links, bus_bytes, 16, has_vector=has_vector)
    found = narrow_sequencer(spec)
    luts, registers, blocks = NARROW_SEQUENCERS[case]
    whole_words = NARROW_SEQUENCERS[64, has_vector, num_links][0]
    assert whole_words + found.lut == pytest.approx(luts, abs=100)
    assert found.ff == pytest.approx(registers, rel=0.01)
    assert found.bram36 == blocks


def test_flip_flops_of_further_semaphores():
    """A sequencer with a vector engine and two links, counted with 24 semaphores and with 32."""
    few, many = (sequencer_registers(6, 2, 14, number, 64) for number in (24, 32))
    assert many - few == 12071 - 11767


@pytest.mark.parametrize(
    ("engines", "has_vector", "num_links", "lut", "ff"),
    [  # on a bus of 32 bytes, each counted as a whole
        (1, False, 0, 2839, 5854),
        (1, False, 1, 4180, 7383),
        (1, False, 2, 6301, 9223),
        (1, True, 0, 3369, 8623),
        (1, True, 1, 4813, 10172),
        (1, True, 2, 6852, 12072),
        (2, False, 0, 3735, 8916),
        (2, False, 1, 5271, 10513),
        (2, True, 0, 4359, 11726),
        (2, True, 2, 7583, 15007),
    ],
)
def test_sequencers_are_as_counted(engines, has_vector, num_links, lut, ff):
    spec = SequencerSpec.of(
        CoreSpec(
            *(8, 8, engines, 512, ScratchpadSpec(2, 1 << 15), 32),
            vector=VectorSpec(1, 1) if has_vector else None,
            links=(LinkEngineSpec(),) * num_links,
        )
    )
    found = sequencer_luts(spec.num_queues, spec.num_semaphores)
    assert found == pytest.approx(lut, rel=0.02)
    queues = 2 + 2 * num_links, engines + has_vector
    units = 2 + sum(spec.units_of_queue(queue) for queue in range(spec.num_queues))
    found = sequencer_registers(*queues, units, spec.num_semaphores, 32)
    # The queue of a GEMM engine has room for twice as many words.
    assert found + 3 * engines == pytest.approx(ff, abs=4)


@pytest.mark.parametrize(
    ("spec", "sequencer", "registers"),
    [  # flip-flops that Yosys counted in the modules of whole cores
        (CoreSpec(4, 4, bus_bytes=4), 5855, 1348),
        (CoreSpec(4, 4, bus_bytes=16, vector=VectorSpec(4, 2)), 8624, 2254),
        (CoreSpec(4, 4, bus_bytes=8, vector=VectorSpec(1, 1), counters=False), 8624, 1277),
        (CoreSpec(4, 4, 2, bus_bytes=16, counters=False), 8917, 767),
    ],
)
def test_registers_of_the_control_follow_from_the_structure(spec, sequencer, registers):
    has_vector = spec.vector is not None
    engines, links = spec.num_engines, len(spec.links)
    options = {"has_vector": has_vector, "counters": spec.counters}
    found = control(SequencerSpec.of(spec), counters=spec.counters)
    # Descriptors between blocks, constants of vectors.
    of_blocks = 596 * engines + 339 * has_vector
    # Fetching depends on the bus by one or two.
    assert found.ff - of_blocks == pytest.approx(sequencer + registers, abs=2)
    assert register_registers(engines, links, spec.bus_bytes, **options) == registers
