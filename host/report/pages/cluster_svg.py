"""The plan as a picture: devices with the layers that they compute, and the links between them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from fpgapipe.errors import counted
from fpgapipe.host.report.drawing.elements import Cell, Heading, Section, table, term, text, whole
from fpgapipe.host.report.drawing.timetable import duration, percent
from fpgapipe.host.report.pages.subject import Subject, array_words
from fpgapipe.host.terminal.console import count, scaled
from fpgapipe.hw.hls_models.spec.on_chip import ON_CHIP
from fpgapipe.lowering.memory.sharing import Category

PER_ROW = 4
MAX_DRAWN = 32
"""Most devices that are drawn; the table has all."""

_PAD, _CARD_HEIGHT, _ROW_GAP = 8, 204, 44
_LAYER_LINES = 3


def cluster_section(subject: Subject) -> Section:
    """Make the section with picture and table of the stages."""
    plan = subject.plan
    each = "one a device" if len(plan.stages) == len(plan.nodes) else "some of several devices"
    if plan.replicas > 1:
        each = f"one a device in each of {plan.replicas} pipelines"
    elif len(plan.stages) == 1 < len(plan.nodes):
        each = "here a single one, which all devices compute together"
    lead = (
        f"The network is cut into {term('stages', 'stage')}, {each}. Features flow to the "
        "right, their gradients back; the bytes are those of one "
        f"{term('micro-batch', 'microbatch')}."
    )
    body = '<div class="view picture" tabindex="0" role="group" aria-label="Devices and links">'
    body += "".join(_picture(subject)) + "</div>\n"
    if len(plan.nodes) > MAX_DRAWN:
        body += f'<p class="note">The first {MAX_DRAWN} of {len(plan.nodes):,} devices.</p>'
    body += _stage_table(subject) + _memory_table(subject)
    proof = "optimal by the planner's prices" if plan.optimal else "not proved optimal"
    body += f'<p class="note">The cut is {proof}: {text(plan.reason)}.</p>\n'
    return Section("plan", "Plan and cluster", lead, body)


def _picture(subject: Subject) -> Iterator[str]:
    drawn = min(len(subject.plan.nodes), MAX_DRAWN)
    across = min(drawn, PER_ROW)
    card, gap = (300, 150) if across <= 2 else (264, 132) if across == 3 else (220, 104)
    rows = -(-drawn // across)
    width = 2 * _PAD + across * card + (across - 1) * gap
    height = 2 * _PAD + rows * _CARD_HEIGHT + (rows - 1) * _ROW_GAP
    label = f"{counted(len(subject.plan.nodes), 'device')} in a row, each joined to the next"
    yield (
        f'<svg class="cluster" viewBox="0 0 {width} {height}" style="max-width:{width}px" '
        f'role="img" aria-label="{label}">'
    )
    for first, last in _shared_boards(subject, drawn, across):
        x, y = (
            _PAD + first % across * (card + gap),
            _PAD + first // across * (_CARD_HEIGHT + _ROW_GAP),
        )
        reach = (last - first) * (card + gap) + card
        yield (
            f'<rect class="board" x="{x - 6}" y="{y - 6}" width="{reach + 12}" '
            f'height="{_CARD_HEIGHT + 12}" rx="14"/>'
        )
    for i in range(drawn):
        x = _PAD + i % across * (card + gap)
        y = _PAD + i // across * (_CARD_HEIGHT + _ROW_GAP)
        yield from _card(subject, i, x, y, card)
        if i + 1 == drawn:
            continue
        if i % across + 1 < across:
            yield from _wire(subject, i, x + card, y, gap)
        else:
            yield from _turn(subject, i, x + card / 2, y + _CARD_HEIGHT, _PAD + card / 2)
    yield "</svg>\n"


def _shared_boards(subject: Subject, drawn: int, across: int) -> Iterator[tuple[int, int]]:
    """The first and the last node of each row's part of a board that several nodes share."""
    links = subject.placed.links
    joined = [link.protocol == ON_CHIP for link in links[: drawn - 1]]
    first = 0
    for i in range(drawn):
        if i + 1 == drawn or not joined[i] or (i + 1) % across == 0:
            if first < i or (first and joined[first - 1]) or (i + 1 < drawn and joined[i]):
                yield first, i
            first = i + 1


def _card(subject: Subject, i: int, x: float, y: float, width: int) -> Iterator[str]:
    node, device = subject.plan.nodes[i], subject.placed.devices[i]
    core, names = node.core, subject.plan.node_layers[i]
    stage = f"stage {subject.plan.stage_numbers[i]}"
    chars = (width - 28) // 7
    yield f'<g class="device"><title>{text(_layers(subject, i))}</title>'
    yield f'<rect class="card" x="{x}" y="{y}" width="{width}" height="{_CARD_HEIGHT}" rx="10"/>'
    left = x + 14
    yield f'<rect class="tab" x="{left}" y="{y}" width="40" height="4"/>'
    yield f'<text class="stage soft" x="{x + width - 14}" y="{y + 29}">{stage}</text>'

    def line(at: float, words: str, css: str = "") -> str:
        return f'<text class="{css}" x="{left}" y="{y + at:g}">{text(_cut(words, chars))}</text>'

    yield line(29, _cut(node.device, (width - 100) // 9), "name")
    where = f"{node.board}, {device.dies[0].name}" if device.is_share else node.board
    yield line(47, f"{where}, {scaled(node.spec.clk_hz, 'Hz')}", "soft")
    yield line(71, f"{array_words(core)} array, {core.vector_lanes} lanes")
    yield line(88, f"{scaled(core.scratchpad.size_bytes, 'B', 1024)} scratchpad", "soft")
    layers = textwrap.wrap(", ".join(names), chars, break_on_hyphens=False)
    head = counted(len(names), "layer")
    yield line(112, head)
    for number, words in enumerate(layers[:_LAYER_LINES]):
        more = number == _LAYER_LINES - 1 and len(layers) > _LAYER_LINES
        yield line(128 + 15 * number, words[: chars - 1] + "…" if more else words, "soft")
    share = node.memory_bytes / device.memory_bytes if device.memory_bytes else 0.0
    bar = width - 28
    yield f'<rect class="track" x="{left}" y="{y + 172}" width="{bar}" height="7" rx="3.5"/>'
    filled = max(bar * min(share, 1.0), 3.0 if node.memory_bytes else 0.0)
    over = " over" if share > 1 else ""
    yield (
        f'<rect class="fill{over}" x="{left}" y="{y + 172}" width="{filled:.1f}" height="7" '
        'rx="3.5"/>'
    )
    used = scaled(node.memory_bytes, "B", 1024)
    room = scaled(device.memory_bytes, "B", 1024)
    rate = scaled(device.memory_bytes_per_s, "B/s")
    yield line(195, f"{used} of {room} at {rate}", "soft")
    yield "</g>"


def _traffic(subject: Subject, i: int) -> tuple[str, str, str, str]:
    """Return the rate of a wire, its bytes in either direction, and all of it in words."""
    link, (one, other) = subject.placed.links[i], subject.placed.placement.pairs[i]
    rate = scaled(link.payload_bytes_per_s, "B/s")
    sends = scaled(subject.plan.nodes[one].sends_bytes, "B")
    returns = scaled(subject.plan.nodes[one].returns_bytes, "B")
    words = [
        f"{subject.names[one]} to {subject.names[other]}: {rate}",
        f"{link.protocol}, latency {duration(link.latency_s)}",
        f"{sends} of activations, {returns} of gradients a micro-batch",
        *_crossings(subject, i),
    ]
    for busy, way in _busy(subject, i):
        words.append(f"{way}: in use {percent(busy)} of the mini-batch")
    return rate, sends, returns, "\n".join(words)


def _crossings(subject: Subject, i: int) -> Iterator[str]:
    """Which dies a wire passes between nodes and their link ports, or between two nodes."""
    pair = subject.placed.placement.pairs[i]
    dies = [subject.placed.devices[node].dies[0].name for node in pair]
    if subject.placed.links[i].protocol == ON_CHIP:
        if dies[0] != dies[1]:
            yield f"registers from {dies[0]} to {dies[1]}"
        return
    for node, die in zip(pair, dies, strict=True):
        device, port = subject.placed.devices[node], subject.placed.port(node, i)
        (group,) = (each for each in device.ports if each.name == port.rpartition("/")[0])
        if device.is_share and group.die not in (None, die):
            yield f"registers from {subject.names[node]} on {die} to {port} at {group.die}"


def _busy(subject: Subject, i: int) -> Iterator[tuple[float, str]]:
    """Share of the mini-batch in which each direction of a wire is in use, if it was measured."""
    measured, (one, other) = subject.measured, subject.placed.placement.pairs[i]
    total = measured.minibatch_cycles.rtl if measured else None
    for link in measured.links if measured else ():
        cycles = link.busy_cycles.rtl
        if {link.source, link.destination} == {one, other} and total and cycles is not None:
            yield cycles / total, "activations" if link.source == one else "gradients"


def _wire(subject: Subject, i: int, x: float, y: float, gap: int) -> Iterator[str]:
    rate, sends, returns, words = _traffic(subject, i)
    middle, there, back = x + gap / 2, y + 86, y + 118
    yield f'<g class="wire"><title>{text(words)}</title>'
    yield f'<text class="rate" x="{middle}" y="{there - 26}">{rate}</text>'
    yield f'<text class="soft" x="{middle}" y="{there - 9}">{sends}</text>'
    yield _arrow(x + 5, there, x + gap - 5, "SF")
    if subject.plan.trains:
        yield _arrow(x + gap - 5, back, x + 5, "SB")
        yield f'<text class="soft" x="{middle}" y="{back + 19}">{returns}</text>'
    yield "</g>"


def _arrow(x: float, y: float, to: float, css: str) -> str:
    tip = 8 if to > x else -8
    return (
        f'<path class="{css}" d="M{x:g} {y:g}H{to - tip:g}" fill="none"/>'
        f'<path class="{css} tip" d="M{to:g} {y:g}l{-tip} -5v10z"/>'
    )


def _turn(subject: Subject, i: int, x: float, y: float, to: float) -> Iterator[str]:
    """Draw a link from the end of one line of devices to the beginning of the next."""
    rate, sends, returns, words = _traffic(subject, i)
    middle = y + _ROW_GAP / 2
    yield f'<g class="wire"><title>{text(words)}</title>'
    yield f'<path class="SF" fill="none" d="M{x:g} {y:g}V{middle:g}H{to:g}V{y + _ROW_GAP - 8:g}"/>'
    yield f'<path class="SF tip" d="M{to:g} {y + _ROW_GAP:g}l-5 -8h10z"/>'
    back = f", {returns} back" if subject.plan.trains else ""
    half = (x + to) / 2
    yield f'<rect class="label" x="{half - 130}" y="{middle - 10:g}" width="260" height="20"/>'
    yield f'<text x="{half:g}" y="{middle + 4:g}">{rate}: {sends} there{back}</text></g>'


def _layers(subject: Subject, i: int) -> str:
    operators = subject.operators
    lines = [
        f"{name} ({operators[name]})" if name in operators else name
        for name in subject.plan.node_layers[i]
    ]
    return "\n".join([f"Layers of {subject.names[i]}:", *lines])


def _cut(words: str, chars: int) -> str:
    return words if len(words) <= chars else words[: chars - 1] + "…"


def _stage_table(subject: Subject) -> str:
    headings = [
        Heading("Stage", hint="In the order in which activations flow"),
        Heading("Device", False),
        Heading("Array"),
        Heading("Layers"),
        Heading("From", False),
        Heading("To", False),
        Heading("MACs", hint="Multiply-accumulates of a forward pass over a micro-batch"),
        *(
            Heading(words, hint=f"{hint}, as planned")
            for words, hint in (
                ("F", "Forward pass of a micro-batch"),
                ("dX", "Gradients of its inputs"),
                ("dW", "Gradients of its weights"),
                ("U", "Update of the weights, once a mini-batch"),
            )
        ),
        Heading("Memory", hint="The most in use at a time"),
    ]
    rows = []
    pairs = zip(subject.plan.nodes, subject.plan.node_layers, strict=True)
    for i, (node, names) in enumerate(pairs):
        core = node.core
        cells = core.cells
        passes = (
            node.forward_s,
            node.input_gradient_s,
            node.weight_gradient_s,
            node.update_s,
        )
        rows.append(
            [
                whole(i),
                Cell(text(node.device)),
                Cell(array_words(core), cells),
                whole(len(names)),
                Cell(text(names[0])),
                Cell(text(names[-1])),
                Cell(count(node.macs), node.macs),
                *(Cell(duration(each), each) for each in passes),
                Cell(scaled(node.memory_bytes, "B", 1024), node.memory_bytes),
            ]
        )
    return table(
        "What each device computes, and how long the plan expects it to take", headings, rows
    )


def _memory_table(subject: Subject) -> str:
    """Uses of the memory of each device."""
    used = subject.build.memory_use
    names = [name for name in Category if any(name in each for each in used)]
    rows = [
        [
            whole(stage),
            *(Cell(scaled(each.get(name, 0), "B", 1024), each.get(name, 0)) for name in names),
            Cell(scaled(sum(each.values()), "B", 1024), sum(each.values())),
        ]
        for stage, each in enumerate(used)
    ]
    headings = [Heading("Stage"), *(Heading(name.value) for name in names), Heading("all")]
    return table("What the memory of each device is used for, when most is alive", headings, rows)
