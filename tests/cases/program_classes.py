"""Sorts the instructions of programs into classes, to see what random programs have met."""

import re
from collections import Counter

from fpgapipe.hw.hls_models.isa.address import BLOCK, OperandPattern, ResultPattern
from fpgapipe.hw.hls_models.isa.instructions import WORD_BYTES, Opcode
from fpgapipe.lowering.products.emit import Semaphore

BITS = {2: "bf16", 4: "fp32"}

REACHABLE = """\
{LOAD,STORE,GEMM,END,forward,input,weight}
{GEMM waits {A_FULL,B_FULL,RESULT_FREE},LOAD waits {A_FREE,B_FREE},STORE waits RESULT_FULL}
{LOAD,STORE} {1-D,2-D,3-D,rows begin at changing bytes}
{LOAD,STORE} rows begin {aligned,unaligned} and end {aligned,unaligned}
{forward,input,weight} {bf16,fp32} x {bf16,fp32}
{forward,input,weight} first {0,1} last {0,1}
{forward,input,weight} {result {bf16,fp32},columns {whole,tail},{m,k,n} {1,many}}
{forward,weight} packed
{forward,input,weight} {a,b} {subs {4,tail},some words empty,unaligned words}
{forward a,weight b} words begin outside
{forward a,input a,weight b} empty tile
{forward a,input a,forward b} lanes tail
weight {a emit tail,b lanes tail by outer}
{{forward,input} a,forward b} sweeps straight {bf16,fp32}
input b sweeps transposed {bf16,fp32}
weight {a,b} {walks blocks transposed {bf16,fp32},blocks {1,many,whole,tail}}
{{forward,input} {a,b},weight a} outer {0,1} loops
weight b outer {0,1,2,3} loops
{{forward,input} a,weight b} pos {0,1,2,3} loops
weight a pos {0,1} loops
weight b begins within {a row,the rows}
{forward,input} b pos 1 loops
{forward,input} {a,b} tap {0,1,2,3} loops
{weight a tap {0,1},weight b tap 0} loops
"""
"""All classes that layers can have on a core of 8 x 8, with alternatives as in a shell."""


def classes_of(conv, which, core, ops, instructions):
    """Count the classes that a program of one pass has.

    Returns
    -------
    Counter
        By name of the class, instructions that are in it.
    """
    found = Counter()
    for item in instructions:
        found[item.opcode.name] += 1
        for number in item.wait:
            found[f"{item.opcode.name} waits {Semaphore(number).name}"] += 1
        if item.opcode in (Opcode.LOAD, Opcode.STORE):
            found.update(_of_transfer(item.opcode.name, item.body))
    gemms = [item.body for item in instructions if item.opcode == Opcode.GEMM]
    for op, body in zip(ops, gemms, strict=True):
        found.update(_of_product(conv, which, core, op, body))
    return found


def reachable():
    """Return the classes of `REACHABLE`, a set."""
    found = set()
    pending = REACHABLE.splitlines()
    while pending:
        text = pending.pop()
        # One that has no others in it first.
        if inner := re.search(r"\{([^{}]*)\}", text):
            options = inner[1].split(",")
            pending += [text[: inner.start()] + option + text[inner.end() :] for option in options]
        else:
            found.add(text)
    return found


def _of_transfer(name, body):
    dims = 1 + (body["rows"] > 0) + (body["planes"] > 0)
    yield f"{name} {dims}-D"
    begins = "aligned" if body["memory"] % WORD_BYTES == 0 else "unaligned"
    ends = "aligned" if (body["memory"] + body["row_bytes"]) % WORD_BYTES == 0 else "unaligned"
    yield f"{name} rows begin {begins} and end {ends}"
    if dims > 1 and (body["row_memory"] or body["plane_memory"]) % WORD_BYTES:
        yield f"{name} rows begin at changing bytes"


def _of_product(conv, which, core, op, body):
    shape = body["extent"]
    a, b = (OperandPattern.decoded(body[name]) for name in ("a", "b"))
    result = ResultPattern.decoded(body["result"])
    yield f"{which}"
    yield f"{which} {BITS[a.element_bytes]} x {BITS[b.element_bytes]}"
    yield f"{which} first {shape['first']} last {shape['last']}"
    if shape["last"]:
        yield f"{which} result {BITS[result.element_bytes]}"
        yield f"{which} columns {'tail' if result.u_limit % core.cols else 'whole'}"
    if which != "input" and conv.is_packed:
        yield f"{which} packed"
    for name in ("m", "k", "n"):
        yield f"{which} {name} {'1' if shape[name] == 0 else 'many'}"
    for name, operand, tile in (("a", a, op.a), ("b", b, op.b)):
        yield from _of_operand(f"{which} {name}", operand, tile)


def _of_operand(name, operand, tile):
    if not tile.run_bytes:
        yield f"{name} empty tile"
    walk = "walks blocks" if operand.walks_blocks else "sweeps"
    way = "transposed" if operand.transposed else "straight"
    yield f"{name} {walk} {way} {BITS[operand.element_bytes]}"
    most = operand.blocks if operand.walks_blocks else operand.tap.loops[0].count
    if operand.subs > 1 and most > 1:
        yield f"{name} subs {operand.subs}"
    if operand.subs_last < operand.subs:
        yield f"{name} subs tail"
    if operand.lanes_last < BLOCK:
        yield f"{name} lanes tail{' by outer' if operand.lanes_by_outer else ''}"
    if operand.transposed and operand.emit_last < operand.emit:
        yield f"{name} emit tail"
    for loops, start in zip(("a row", "the rows"), operand.pos_start, strict=True):
        if start:
            yield f"{name} begins within {loops}"
    if operand.walks_blocks:
        tail = operand.positions < BLOCK * operand.blocks
        yield f"{name} blocks {'tail' if tail else 'whole'}"
        yield f"{name} blocks {'many' if operand.blocks > 1 else '1'}"
    for part in ("outer", "tap", "pos"):
        loops = sum(loop.count > 1 for loop in getattr(operand, part).loops)
        yield f"{name} {part} {loops} loops"
    words = operand.words()
    used = words.lanes.any(axis=1)
    if used.any() and not used.all():
        yield f"{name} some words empty"
    partly = used & ~words.lanes.all(axis=1)
    if partly.any() and (~words.lanes[partly, 0]).any():
        yield f"{name} words begin outside"
    if (words.address[used] * 1 % WORD_BYTES != 0).any():
        yield f"{name} unaligned words"
