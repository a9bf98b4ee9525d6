"""The words of the report, for readers who are new to it."""

from __future__ import annotations

from fpgapipe.host.report.drawing.elements import Section

WORDS = {
    "stage": (
        "stage",
        "A part of the network, layers that follow one another, which one device computes.",
    ),
    "minibatch": (
        "mini-batch",
        "The samples after which the weights are updated once. Also called a batch or a step.",
    ),
    "microbatch": (
        "micro-batch",
        "An equal part of a mini-batch. While one device works on one of them, the next device "
        "works on another, which is what makes a pipeline.",
    ),
    "schedule": (
        "schedule",
        "Which task each device does in which order: F is a forward pass of a micro-batch, dX the "
        "gradients of its inputs, dW those of its weights, B both of these, U the update.",
    ),
    "bubble": (
        "bubble",
        "Time in which a device has nothing to do, since what it needs is not there yet.",
    ),
    "efficiency": (
        "pipeline efficiency",
        "The time that all work would take by the plan, spread evenly over the devices without a "
        "pause, over the time of a mini-batch: bubbles lower it, and work that takes longer than "
        "the plan says.",
    ),
    "levels": (
        "levels",
        "The closed form is a formula; the event simulation plays tasks and transfers; the cycle "
        "model predicts each instruction; the RTL simulation runs the generated Verilog, clock "
        "by clock. Each is checked against the next.",
    ),
    "rtl": (
        "RTL",
        "Register-transfer level: the hardware's own description, here the Verilog of the build. "
        "What it takes in simulation is what it takes on a board, but for the board's memory "
        "and links, which are models.",
    ),
    "cycle": (
        "cycle",
        "A tick of the clock. Cycles over the clock's rate are seconds.",
    ),
    "counter": (
        "counter",
        "A register of the hardware that counts cycles or bytes; the build's register map has all.",
    ),
    "array": (
        "array",
        "The systolic array of a GEMM engine: rows by columns of cells, each of which multiplies "
        "and adds once a cycle.",
    ),
    "semaphore": (
        "semaphore",
        "How one engine tells another that something is done. An engine that waits for one waits "
        "for another engine, or through a link for another device.",
    ),
    "resources": (
        "LUT, FF, BRAM, URAM, DSP",
        "What an FPGA is made of: look-up tables for logic, flip-flops, two sizes of memory "
        "blocks, and multipliers.",
    ),
    "die": (
        "die",
        "Large FPGAs are several chips side by side (SLRs); wires between them are few, so that "
        "each has a limit of its own.",
    ),
    "pytorch": (
        "PyTorch",
        "The reference: the same network, data, order and initial weights in a well-known "
        "framework, on CPU or GPU.",
    ),
}
"""Word and explanation by the identifier that links use."""


def glossary_section() -> Section:
    """Make the section with all words in alphabetical order."""
    words = sorted(WORDS.items(), key=lambda each: each[1][0].lower())
    items = "".join(
        f'<div><dt id="g-{ident}">{word}</dt><dd>{meaning}</dd></div>\n'
        for ident, (word, meaning) in words
    )
    lead = "The words of this page."
    return Section("glossary", "Glossary", lead, f'<dl class="glossary">\n{items}</dl>\n')
