"""Instructions and programs: encoding, decoding, listing, and what is refused."""

import random
import re
from dataclasses import replace

import numpy as np
import pytest

from fpgapipe.hw.hls_models.isa.address import Loop, LoopNest, OperandPattern
from fpgapipe.hw.hls_models.isa.gemm_fields import GEMM
from fpgapipe.hw.hls_models.isa.instructions import (
    BODIES,
    LINK,
    LINK_OPCODES,
    WORD_BYTES,
    ErrorCode,
    Field,
    Instruction,
    Opcode,
    ProgramError,
    decode,
    has_one_engine,
    listing,
    words_of,
)
from fpgapipe.hw.hls_models.isa.program import Program, encode
from fpgapipe.hw.hls_models.isa.vector_fields import VECTOR

TRANSFER = {
    "memory": 0x1_0000_0040, "scratchpad": 64, "row_bytes": 128, "rows": 3, "row_memory": -256,
    "row_scratchpad": 128, "planes": 0, "plane_memory": 0, "plane_scratchpad": 0,
}  # fmt: skip
LOAD = Instruction(Opcode.LOAD, wait=(3,), signal=(1, 0), body=TRANSFER)
END = Instruction(Opcode.END)


def random_body(group, rng):
    body = {}
    for member in group.fields:
        if isinstance(member, Field):
            low = -(1 << (member.bits - 1)) if member.signed else 0
            high = low + (1 << member.bits) - 1
            body[member.name] = rng.choice([low, high, rng.randint(low, high)])
        elif member.times:
            body[member.name] = [random_body(member, rng) for _ in range(member.times)]
        else:
            body[member.name] = random_body(member, rng)
    return body


def test_encodes_bytes_worked_by_hand():
    code = encode([LOAD])
    assert len(code) == WORD_BYTES
    # opcode 2, one word, waits for 3, signals 0 and 1, engine 0; then the address in 6 bytes.
    assert code[:11] == bytes([2, 1, 0b1000, 0, 0, 0, 0b11, 0, 0, 0, 0])
    assert code[11:17] == bytes([0x40, 0, 0, 0, 1, 0])
    assert code[17:21] == (64).to_bytes(4, "little")
    # 48 + 32 + 32 + 16 bits on: five bytes of -256.
    assert code[27:32] == bytes([0, 0xFF, 0xFF, 0xFF, 0xFF])


def test_takes_as_many_words_as_fields_need():
    assert {opcode.name: words_of(opcode) for opcode in Opcode} == {
        "END": 1, "LOAD": 1, "STORE": 1, "GEMM": 5, "VECTOR": 5, "SEND": 1, "RECEIVE": 1,
    }  # fmt: skip
    assert GEMM.bits == 2471


def test_decodes_what_it_encodes():
    rng = random.Random(0)
    program = []
    for _ in range(50):
        opcode = rng.choice([opcode for opcode in Opcode if opcode is not Opcode.END])
        program.append(
            Instruction(
                opcode,
                tuple(rng.sample(range(32), rng.randint(0, 32))),
                tuple(rng.sample(range(32), rng.randint(0, 32))),
                0 if has_one_engine(opcode) else rng.randrange(4),
                random_body(BODIES[opcode], rng),
            )
        )
    program.append(Instruction(Opcode.END, wait=(2,)))
    code = encode(program)
    assert decode(code) == program
    assert decode(code + bytes(100), num_engines=4) == program


def test_what_differs_by_a_number_is_packed_once():
    """An address, or random vectors that are skipped, are added to what the others share."""
    rng = random.Random(5)
    body = random_body(VECTOR, rng)
    drawing = Instruction(Opcode.VECTOR, (1,), (), body={**body, "random": {
        "threshold": 7, "first": 5, "key": 2}})  # fmt: skip
    numbers = [0, 64, 64 - (1 << 32), 128, 0, 1, 1 << 40, 0]
    program = Program.of([LOAD] * 3 + [replace(LOAD, wait=())] + [drawing] * 3 + [END])
    program = program.having(numbers=np.array(numbers))
    apart = [replace(each, body=with_number(each, 0)) for each in program]
    assert [number_of(each) - number_of(own) for each, own in zip(program, [
        *[LOAD] * 4, *[drawing] * 3, END], strict=True)] == numbers  # fmt: skip
    assert program.encode() == b"".join(encode([each]) for each in apart)
    assert decode(program.encode()) == program == list(program)
    for number, wrong, message in [
        (-(1 << 40), LOAD, "instruction 0: transfer memory must be in 0.."),
        (1 << 48, drawing, "instruction 0: random first must be in 0.."),
    ]:
        changed = Program.of([wrong, END]).having(numbers=np.array([number, 0]))
        with pytest.raises(ProgramError, match=f"^{re.escape(message)}"):
            changed.encode()


def number_of(instruction):
    body = instruction.body
    return body["memory"] if "memory" in body else body.get("random", {"first": 0})["first"]


def with_number(instruction, added):
    """A copy of a body, which no other instruction shares."""
    body = {**instruction.body}
    if "memory" in body:
        body["memory"] += added
    return body


def test_programs_are_joined_and_taken_apart():
    """Bodies that programs share stay one, and spans of memory move with the addresses."""
    draw = random.Random(11)
    gemm = Instruction(Opcode.GEMM, engine=1, body=random_body(GEMM, draw))
    store = Instruction(Opcode.STORE, (2,), (5,), body={
        **TRANSFER, "memory": 4096, "row_bytes": 64, "rows": 3, "row_memory": -128, "planes": 1,
        "plane_memory": 1024})  # fmt: skip
    one = Program.of([gemm, store, gemm])
    both = Program.joined([one, one.moved(64), Program.of([END])])
    assert len(both.bodies) == 3
    assert list(both) == [
        *one,
        gemm,
        replace(store, body={**store.body, "memory": 4160}),
        gemm,
        END,
    ]
    begin, end = both.spans
    assert begin.tolist() == [-1, 4096 - 3 * 128, -1, -1, 4160 - 3 * 128, -1, -1]
    assert end.tolist() == [-1, 4096 + 1024 + 64, -1, -1, 4160 + 1024 + 64, -1, -1]
    assert both.num_bytes == len(both.encode()) == 64 * (4 * 5 + 2 + 1)
    assert list(both[3:]) == list(both)[3:]
    assert list(both.taken(np.array([6, 1]))) == [END, store]
    waits = both.waiting(np.array([[4, 1, 9], [4, 0, 10], [6, 4, 9]]))
    assert [(each.wait, each.signal) for each in waits] == [
        ((), (10,)), ((2,), (5, 9)), ((), ()), ((), ()), ((2, 9, 10), (5, 9)), ((), ()), ((9,), ()),
    ]  # fmt: skip
    assert waits != both == list(both)


def test_holds_operand_patterns():
    pattern = OperandPattern(base=2, pos=LoopNest((Loop(4, 64), Loop(3, -128, 1, -5))))
    body = random_body(GEMM, random.Random(1)) | {"a": pattern.encoded()}
    found = decode(encode([Instruction(Opcode.GEMM, body=body), END]))[0]
    assert OperandPattern.decoded(found.body["a"]) == pattern


def test_lists_a_program():
    assert listing(encode([LOAD, END])) == (
        "     0  0x000000  LOAD  wait 3  signal 0,1  memory=4294967360  scratchpad=64  "
        "row_bytes=128  rows=3  row_memory=-256  row_scratchpad=128\n"
        "     1  0x000040  END"
    )
    gemm = Instruction(Opcode.GEMM, engine=1, body=random_body(GEMM, random.Random(2)))
    assert str(gemm).startswith("GEMM[1]  extent.k=65535  extent.n=")
    assert " a.outer[1].count=" in str(gemm)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"wait": (32,)}, "LOAD wait must be of semaphores 0..31, not 32"),
        ({"signal": (1, 1)}, "LOAD signal must name each semaphore once, not (1, 1)"),
        ({"opcode": Opcode.END, "signal": (1,)}, "END signal must be empty, not (1,)"),
    ],
)
def test_refuses_instructions(arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Instruction(**{"opcode": Opcode.LOAD, **arguments})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 1 << 16}, "transfer rows must be in 0..65535 (16 bits), not 65536"),
        ({"row_memory": -(1 << 39) - 1},
         "transfer row_memory must be in -549755813888..549755813887 (40 bits), not -549755813889"),
        ({"more": 1},
         "transfer must have the fields memory, scratchpad, row_bytes, rows, row_memory, "
         "row_scratchpad, planes, plane_memory, plane_scratchpad, not memory, scratchpad, "
         "row_bytes, rows, row_memory, row_scratchpad, planes, plane_memory, plane_scratchpad, "
         "more"),
    ],
)  # fmt: skip
def test_refuses_to_encode(change, message):
    wrong = Instruction(Opcode.STORE, body=TRANSFER | change)
    with pytest.raises(ProgramError, match=f"^instruction 2: {re.escape(message)}$") as caught:
        encode([LOAD, LOAD, wrong, END])
    assert (caught.value.index, caught.value.code) == (2, ErrorCode.BAD_FIELD)


def test_refuses_lists_of_another_length():
    body = random_body(GEMM, random.Random(3))
    body["a"]["tap"] = body["a"]["tap"][:2]
    with pytest.raises(ProgramError, match=r"^instruction 0: a tap must have 3 entries, not 2$"):
        encode([Instruction(Opcode.GEMM, body=body)])


@pytest.mark.parametrize(
    ("byte", "value", "code", "message"),
    [
        (0, 0, ErrorCode.BAD_OPCODE, "opcode must be one of 1, 2, 3, 4, 5, 6, 7, not 0"),
        (0, 9, ErrorCode.BAD_OPCODE, "opcode must be one of 1, 2, 3, 4, 5, 6, 7, not 9"),
        (1, 2, ErrorCode.BAD_LENGTH, "LOAD words must be 1, not 2"),
        (10, 1, ErrorCode.BAD_FIELD, "LOAD engine must be in 0..0, not 1"),
        (10, 128, ErrorCode.BAD_FIELD, "LOAD reserved must be 0, not 8"),
    ],
)
def test_refuses_to_decode(byte, value, code, message):
    program = bytearray(encode([LOAD, LOAD, END]))
    program[WORD_BYTES + byte] = value
    with pytest.raises(ProgramError, match=f"^instruction 1: {re.escape(message)}$") as caught:
        decode(bytes(program))
    assert (caught.value.index, caught.value.code) == (1, code)


def test_refuses_semaphores_that_a_core_has_not():
    program = encode([replace(LOAD, wait=(3, 19), signal=(1,)), END])
    assert len(decode(program, num_engines=1, num_links=1)) == 2
    assert len(decode(program, num_engines=2, num_links=0)) == 2
    message = r"^instruction 0: LOAD wait must be of semaphores 0..15, not 19$"
    with pytest.raises(ProgramError, match=message) as caught:
        decode(program, num_engines=1, num_links=0)
    assert caught.value.code is ErrorCode.BAD_FIELD


def test_refuses_vectors_without_an_engine():
    program = [Instruction(Opcode.VECTOR, body=random_body(VECTOR, random.Random(5))), END]
    assert decode(encode(program)) == program
    message = "instruction 0: opcode must be one of 1, 2, 3, 4, 6, 7, not 5"
    with pytest.raises(ProgramError, match=f"^{message}$") as caught:
        decode(encode(program), has_vector=False)
    assert caught.value.code == ErrorCode.BAD_OPCODE


def test_knows_links_by_their_number():
    body = random_body(LINK, random.Random(6))
    for opcode in LINK_OPCODES:
        program = [Instruction(opcode, engine=2, body=body), END]
        assert decode(encode(program), num_links=3) == program
        assert str(program[0]).startswith(f"{opcode.name}[2]  memory=")
        message = f"instruction 0: {opcode.name} engine must be in 0..1, not 2"
        with pytest.raises(ProgramError, match=f"^{re.escape(message)}$") as caught:
            decode(encode(program), num_links=2)
        assert caught.value.code == ErrorCode.BAD_FIELD
        message = f"instruction 0: opcode must be one of 1, 2, 3, 4, 5, not {int(opcode)}"
        with pytest.raises(ProgramError, match=f"^{re.escape(message)}$") as caught:
            decode(encode(program), num_links=0)
        assert caught.value.code == ErrorCode.BAD_OPCODE


def test_refuses_programs_that_break_off():
    gemm = Instruction(Opcode.GEMM, engine=1, body=random_body(GEMM, random.Random(4)))
    program = encode([LOAD, gemm, END])
    for size, message in [
        (0, "instruction 0: program must have an END within its 0 bytes"),
        (64, "instruction 1: program must have an END within its 64 bytes"),
        (320, "instruction 1: GEMM must end within the program's 320 bytes, not at 384"),
        (384, "instruction 2: program must have an END within its 384 bytes"),
    ]:
        with pytest.raises(ProgramError, match=f"^{re.escape(message)}$"):
            decode(program[:size])
    with pytest.raises(ProgramError, match=r"^instruction 1: GEMM engine must be in 0..0, not 1$"):
        decode(program, num_engines=1)
    end = bytearray(encode([END]))
    end[6] = 4
    with pytest.raises(
        ProgramError, match=r"^instruction 0: END signal must be empty, not \(2,\)$"
    ):
        decode(bytes(end))


def test_equal_instructions_are_decoded_once():
    """Micro-batches repeat most instructions of a step; others differ by addresses alone."""
    draw = random.Random(7)
    load, near, far = (
        replace(LOAD, body={**TRANSFER, "memory": memory}) for memory in (0, 64, 1 << 20)
    )
    gemm = Instruction(Opcode.GEMM, body=random_body(GEMM, draw))
    waits = replace(gemm, wait=(1,))
    program = [load, near, gemm, far, waits, near, gemm, load, END]
    found = decode(encode(program))
    assert found == program
    assert [found[7], found[5], found[6]] == [load, near, gemm]
    for one, other in ((0, 7), (1, 5), (2, 6)):
        assert found[one] is found[other]
    assert found[4].body is found[2].body
    assert found[3].body["memory"] == 1 << 20
    # The last of two equal instructions ends behind the program.
    whole = encode([gemm, gemm])
    with pytest.raises(ProgramError, match=r"^instruction 1: GEMM must end within the program's "):
        decode(whole[:-64])
