"""SEND and RECEIVE in the models of cores: packets, clusters that take turns, deadlocks."""

import re

import numpy as np
import pytest

from fpgapipe.hw.hls_models.isa.instructions import ErrorCode, Instruction, Opcode, decode
from fpgapipe.hw.hls_models.isa.program import Program, encode
from fpgapipe.hw.hls_models.model.cluster import ClusterDeadlock, run_cluster
from fpgapipe.hw.hls_models.model.core import CoreError, CoreModel
from fpgapipe.hw.hls_models.model.dma import transfer
from fpgapipe.hw.hls_models.model.link_dma import Packet, packet
from fpgapipe.hw.hls_models.spec.core_spec import CoreSpec, ScratchpadSpec
from fpgapipe.hw.hls_models.spec.link import LinkEngineSpec

CORE = CoreSpec(4, 4, scratchpad=ScratchpadSpec(1, 1024), links=(LinkEngineSpec(),) * 2)
RING = [((0, 1), (1, 0)), ((1, 1), (2, 0)), ((2, 1), (0, 0))]
END = Instruction(Opcode.END)


def send(link, body):
    return Instruction(Opcode.SEND, engine=link, body=body)


def receive(link, body):
    return Instruction(Opcode.RECEIVE, engine=link, body=body)


def models(number, size=4096):
    rng = np.random.default_rng(1)
    return [CoreModel(CORE, rng.integers(0, 256, size, np.uint8)) for _ in range(number)]


def test_packets_go_round_a_ring():
    ring = models(3)
    first = ring[0].memory.copy()
    body = packet(100, 300, rows=2, row_memory=320, channel=1, stream=7)
    moved = [packet(100 + 64 * n, 300, rows=2, row_memory=320, channel=1, stream=7)
             for n in range(3)]  # fmt: skip
    back = body | {"memory": 100 + 2048}
    run_cluster(
        ring,
        [
            [send(1, body), receive(0, back), END],
            [receive(0, moved[1]), send(1, moved[1]), END],
            [receive(0, moved[2]), send(1, moved[2]), END],
        ],
        RING,
    )
    np.testing.assert_array_equal(ring[0].memory[2148 : 2148 + 300], first[100:400])
    np.testing.assert_array_equal(ring[0].memory[2468 : 2468 + 300], first[420:720])
    # Between the rows nothing is written.
    np.testing.assert_array_equal(ring[0].memory[2448:2468], first[2448:2468])
    assert not any(queue for model in ring for port in model.links for queue in port.inbox)


def test_a_run_goes_on_where_it_stopped():
    (model,) = models(1)
    body = packet(0, 64, stream=3)
    came = body | {"memory": 640}
    program = [send(0, body), receive(1, came), send(0, body), send(0, came), END]
    # What does not need the packet goes on without it.
    assert model.run(program) == 3
    assert [index for index, _ in model.late] == [1]
    assert len(model.links[0].out[0]) == 2
    assert model.run(program, 3) == 3
    model.links[1].inbox[0].append(model.links[0].out[0].popleft())
    assert model.run(program, 3) == 4
    assert model.catch_up()
    np.testing.assert_array_equal(model.memory[640:704], model.memory[:64])
    np.testing.assert_array_equal(model.links[0].out[0][-1].words[0], model.memory[:64])
    assert model.run(program[:1]) == 1  # a program without END


def test_an_end_waits_for_what_was_put_off():
    (model,) = models(1)
    program = [receive(0, packet(0, 64, channel=1)), receive(0, packet(64, 64)), END]
    model.links[0].inbox[0].append(Packet(0, np.zeros((1, 64), np.uint8)))
    # The second has its packet, and stands behind the first, as in the link's queue.
    assert model.run(program) == 2
    assert not model.catch_up()
    model.links[0].inbox[1].append(Packet(0, np.ones((1, 64), np.uint8)))
    assert model.catch_up()
    assert model.memory[:64].all()
    assert not model.memory[64:128].any()


def test_long_programs_stop_at_packets_too():
    """Machine code between packets."""
    short, long = models(2), models(2)
    body = packet(64, 100, channel=2, stream=9)
    moves = [
        Instruction(Opcode.LOAD, body=transfer(64 * (n % 16), 64 * (n % 8), 64)) for n in range(100)
    ]
    moves += [Instruction(Opcode.STORE, body=transfer(1024 + 64 * n, 64 * n, 64)) for n in range(8)]
    one = [*moves, send(1, body), *moves, receive(0, body), *moves, END]
    other = [*moves, receive(0, body), *moves, send(1, body), *moves, END]
    wiring = [((0, 1), (1, 0)), ((1, 1), (0, 0))]
    run_cluster(long, [one, other], wiring)
    assert all(model._prepared for model in long)
    for model in short:
        model._prepared_for = lambda program: None
    run_cluster(short, [one, other], wiring)
    for quick, slow in zip(long, short, strict=True):
        np.testing.assert_array_equal(quick.memory, slow.memory)
        np.testing.assert_array_equal(quick.scratchpad, slow.scratchpad)


def test_a_deadlock_names_who_waits_for_whom():
    body = packet(0, 64, channel=2, stream=5)
    programs = [
        [receive(0, body), send(1, body), END],
        [receive(0, body), send(1, body), END],
        [END],
    ]
    with pytest.raises(ClusterDeadlock) as caught:
        run_cluster(models(3), programs, RING[:1] + RING[2:])
    assert caught.value.waiting == {0: 0, 1: 0}
    assert str(caught.value) == (
        "device 0 waits at instruction 0 (RECEIVE[0]) for stream 5 on channel 2 of device 2's "
        "link 1; device 1 waits at instruction 0 (RECEIVE[0]) for stream 5 on channel 2 of device "
        "0's link 1"
    )


def test_a_deadlock_names_the_receive_into_the_scratchpad():
    body, other = packet(0, 64, stream=5, in_scratchpad=True), packet(0, 64, channel=1, stream=6)
    programs = [[receive(1, other), receive(0, body), END], [END], [END]]
    with pytest.raises(ClusterDeadlock, match=r"^device 0 waits at instruction 1 \(RECEIVE\[0\]\)"):
        run_cluster(models(3), programs, RING)
    programs[0] = [receive(0, other), receive(0, body), END]
    with pytest.raises(ClusterDeadlock, match=r"^device 0 waits at instruction 0 \(RECEIVE\[0\]\)"):
        run_cluster(models(3), programs, RING)


def test_packets_pass_through_scratchpads():
    """They go from the memory of the first device to that of the last, and touch no other."""
    size = 256
    begun = models(3)
    memories = [model.memory.copy() for model in begun]
    pads = [model.scratchpad.copy() for model in begun]
    body, pad = packet(64, size, stream=7), packet(128, size, stream=7, in_scratchpad=True)
    programs = [[send(1, body), END], [receive(0, pad), send(1, pad), END], [receive(0, body), END]]
    run_cluster(begun, programs, RING)
    np.testing.assert_array_equal(begun[2].memory[64 : 64 + size], memories[0][64 : 64 + size])
    np.testing.assert_array_equal(begun[1].scratchpad[128 : 128 + size], memories[0][64:][:size])
    pads[1][128 : 128 + size] = memories[0][64:][:size]
    for model, memory, own in zip(begun[:2], memories, pads, strict=False):
        np.testing.assert_array_equal(model.memory, memory)
        np.testing.assert_array_equal(model.scratchpad, own)


@pytest.mark.parametrize(
    "change",
    [{"row_bytes": 96}, {"memory": 32}, {"rows": 1}, {"memory": 1 << 30}, {"row_bytes": 0}],
)
def test_words_that_the_scratchpad_has_not_are_an_error(change):
    body = packet(0, 64, in_scratchpad=True) | change
    for program in ([send(0, body), END], [receive(0, body), END]):
        with pytest.raises(CoreError) as caught:
            run_cluster(models(1), [program], [((0, 0), (0, 1))])
        assert caught.value.code is ErrorCode.BAD_FIELD


def test_addresses_in_the_scratchpad_stay():
    """A program that is moved in memory keeps them, and has no span of memory there."""
    program = Program.of([send(0, packet(64, 128, in_scratchpad=True)), send(0, packet(64, 128))])
    moved = program.moved(1 << 20)
    assert [each.body["memory"] for each in moved] == [64, 64 + (1 << 20)]
    assert moved.spans[0].tolist() == [-1, 64 + (1 << 20)]
    assert decode(moved.encode() + encode([END])) == [*moved, END]


def test_a_link_to_nowhere_is_an_error():
    body = packet(0, 64)
    message = "device 0 sends on link 1, which is joined to nothing"
    with pytest.raises(ValueError, match=f"^{message}$"):
        run_cluster(models(1), [[send(1, body), END]], [])
    with pytest.raises(ClusterDeadlock, match=r"of a link that is joined to nothing$"):
        run_cluster(models(1), [[receive(1, body), END]], [])
    for wiring, message in [
        ([((0, 2), (0, 0))], "wiring must be of links that exist, not link 2 of device 0"),
        ([((0, 0), (1, 0))], "wiring must be of links that exist, not link 0 of device 1"),
        ([((0, 0), (0, 1)), ((0, 1), (0, 1))], "wiring must name link 1 of device 0 once"),
    ]:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            run_cluster(models(1), [[END]], wiring)


def test_a_looped_link_gives_back_what_it_gets():
    (model,) = models(1)
    body = packet(0, 64, stream=1)
    run_cluster([model], [[send(0, body), receive(0, body | {"memory": 128}), END]],
                [((0, 0), (0, 0))])  # fmt: skip
    np.testing.assert_array_equal(model.memory[128:192], model.memory[:64])


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"stream": 6}, ErrorCode.LINK_STREAM, "stream 5 of 2 words came for stream 6 of 2"),
        ({"row_bytes": 129}, ErrorCode.LINK_STREAM, "stream 5 of 2 words came for stream 5 of 3"),
        ({"channel": 3}, ErrorCode.BAD_FIELD, "RECEIVE of 128 bytes a row"),
        ({"memory": 4096}, ErrorCode.MEMORY_RANGE, "stream 5 of 2 words came for stream 5 of 2"),
    ],
)
def test_a_packet_must_be_the_one_expected(change, code, message):
    (model,) = models(1)
    body = packet(0, 128, stream=5)
    with pytest.raises(CoreError, match=f"^instruction 1: {code.name}: {message}$") as caught:
        run_cluster([model], [[send(0, body), receive(1, body | change), END]],
                    [((0, 0), (0, 1))])  # fmt: skip
    assert (caught.value.code, caught.value.index) == (code, 1)


def test_a_send_stays_in_memory():
    for body, code in [
        (packet(4096 - 64, 65), ErrorCode.MEMORY_RANGE),
        (packet(0, 0), ErrorCode.BAD_FIELD),
    ]:
        with pytest.raises(CoreError) as caught:
            models(1)[0].run([send(0, body), END])
        assert caught.value.code is code
