"""Clocks for engines that are idle: Verilog in which the simulator does not clock what rests.

An engine whose registers and inputs have been the same for a cycle stays as it is until one of its
inputs changes: what a register takes at an edge depends on nothing else. Such an engine *rests*,
and gets no edges of the clock. Verilator evaluates nothing that depends on its clock alone then.
Outputs therefore have in each cycle the values that they have with one clock, whatever the design
does.

Once in a while, an engine that does not rest takes a copy of its registers and inputs and compares
them with the copy in each cycle, until one differs. Each statement that writes to a memory has a
counter, which is one of these registers. Models in C++ have state of their own; an engine with such
a model is compared for `SETTLED_CYCLES` cycles, within which the models settle.

Inputs that carry data count, and reach the engine, only while their ``valid`` is high: the data of
a memory's answers, or of the scratchpad's, go past all engines, and would wake each of them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from fpgapipe.sim_tb.substitutes.verilog_module import Port, instances, ports, split_modules, width

ENGINES = re.compile(r"(?:link|receive|send|store|vector)_engine\d*|sequencer")
"""Modules in the top module that rest while nothing happens in them. Others, such as the engine for
products, rest too rarely: each clock costs something in every cycle."""

SETTLED_CYCLES = 240
"""Cycles in which nothing may change before an engine with models in C++ rests; these settle in
fewer."""

# Names of inputs that carry data, and of the input that says whether they do.
_DATA = (
    (re.compile(r"(.*)__(?:payload|code|index)"), r"\1__valid"),
    (re.compile(r"(.*)__r(?:data|last|resp)"), r"\1__rvalid"),
    (re.compile(r"(.*)__data"), r"\1__data_valid"),
)

_NAME = r"\\\S+|[A-Za-z_][\w$]*"
_INSTANCE = re.compile(rf"^  ({_NAME}) +(?:{_NAME}) +\($", re.MULTILINE)
_REGISTERS = re.compile(r"^  reg (?:\[(\d+):0\] )?(.*);$", re.MULTILINE)
_DECLARED = re.compile(rf"(?:^|, )({_NAME})(?: *=[^,]*)?")
_ASSIGNED = re.compile(rf"(?:^ +|\) |begin |else )({_NAME}) *(?:\[[^\]]*\])? *<= ", re.MULTILINE)
_ARRAY = re.compile(rf"^  reg (?:\[\d+:0\] )?({_NAME}) +\[", re.MULTILINE)
_BLOCKING = re.compile(rf" +(?:{_NAME}) *(?:\[[^\]]*\])? = .*")
_CONNECTION = re.compile(rf"    \.({_NAME}) *\((.*)\),?")

# Cycles from one copy to the next one, and cycles of comparison before an engine rests, with models
# in C++ and without. What differs in one cycle is known in the next one.
_PERIODS = {True: (256, SETTLED_CYCLES), False: (16, 2)}


def idle_clocks(verilog: str, top: str, *, checked: bool = False) -> str:
    """Give the engines of a design clocks of their own.

    The top module gets two ports with a bit for each engine: the input ``idle_clk``, and the output
    ``idle_wake``, which says whether the engine must be clocked at the next edge of ``clk``.

    Parameters
    ----------
    verilog : str
        Text of all modules, as `fpgapipe.hw.rtl.verilog` generates it.
    top : str
        Name of the top module.
    checked : bool
        Whether each engine is there twice, with the clock of the design and with its own, and all
        outputs are compared in every cycle; those with the clock of the design are used. The
        function ``fpgapipe_differs`` must be declared.

    Returns
    -------
    str
        The text; unchanged if the design has no such engine.
    """
    texts = split_modules(verilog)
    engines: list[str] = []
    made: dict[str, str] = {}
    for module in dict.fromkeys(instances(texts.get(top, ""))):
        observed: dict[str, str] = {}
        if ENGINES.fullmatch(module) and module in texts and _observe(module, texts, observed):
            engines.append(module)
            made |= observed
    if not engines:
        return verilog
    texts[top] = _with_clocks(texts[top], engines, texts, checked)
    return "".join([*texts.values(), *made.values()])


def _copy_name(module: str) -> str:
    return f"{module}__observed "


def _with_counters(text: str) -> tuple[str, dict[str, int]] | None:
    """Count writes to memories; returns the text and the widths of all registers, bits.

    The result is None for a module whose state has another form than Yosys and the clock-enable
    rewriting give it.
    """
    widths: dict[str, int] = {}
    for high, names in _REGISTERS.findall(text):
        if "[" not in names:
            widths |= dict.fromkeys(_DECLARED.findall(names), int(high or 0) + 1)
    arrays = "|".join(re.escape(name) for name in _ARRAY.findall(text))
    write = re.compile(rf"( +)((?:{arrays}) ?\[.* <?= .*;)")
    registers: dict[str, int] = {}
    counters: list[str] = []
    is_clocked = False
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if not line.startswith("    "):
            is_clocked = line.startswith("  always")
        if not is_clocked:
            continue
        if arrays and (found := write.fullmatch(line)):
            name = f"observed_writes{len(counters)}"
            counters.append(name)
            lines[number] = f"{found[1]}begin {found[2]} {name} <= {name} + 1; end"
        elif " <= " in line and not _BLOCKING.fullmatch(line):
            names = _ASSIGNED.findall(line.replace("  always @(posedge clk) ", "    "))
            if not names or any(name not in widths for name in names):
                return None
            registers |= {name: widths[name] for name in names}
    head, _, rest = "\n".join(lines).partition(");\n")
    declared = "".join(f"  reg [7:0] {name} = 0;\n" for name in counters)
    return f"{head});\n{declared}{rest}", registers | dict.fromkeys(counters, 8)


def _observe(module: str, texts: Mapping[str, str], made: dict[str, str]) -> bool:
    """Make copies of a module and of those inside it that compare registers, if possible."""
    if module in made:
        return True
    made[module] = ""
    found = _with_counters(texts[module])
    if found is None:
        return False
    text, registers = found
    children = [child for child in instances(text) if child in texts]
    if not all(_observe(child, texts, made) for child in children):
        return False
    differs = ["observed_differs"]

    def instance(found: re.Match[str]) -> str:
        if found[1] not in texts:
            return found[0]
        differs.append(f"child{len(differs)}_differs")
        return (
            f"{found[0].replace(found[1], _copy_name(found[1]), 1)}\n"
            "    .observe_take(observe_take),\n    .observe_compare(observe_compare),\n"
            f"    .observe_differs({differs[-1]}),"
        )

    body = _INSTANCE.sub(instance, text)
    body = body.replace(f"module {module}", f"module {_copy_name(module)}", 1)
    head, _, rest = body.partition(");\n")
    rest, _, _ = rest.rpartition("endmodule")
    lines = [f"{head}, observe_take, observe_compare, observe_differs);"]
    lines += ["  input observe_take, observe_compare;", "  output observe_differs;"]
    lines += ["  reg observed_differs = 0;", *(f"  wire {name};" for name in differs[1:])]
    lines += [f"  assign observe_differs = {' | '.join(differs)};"]
    lines += [f"  reg {width(bits)}observed{k};" for k, bits in enumerate(registers.values())]
    lines.append(rest)
    changes = [f"({name} != observed{k})" for k, name in enumerate(registers)]
    if changes:
        lines += ["  always @(posedge clk) if (observe_take) begin"]
        lines += [f"    observed{k} <= {name} ;" for k, name in enumerate(registers)]
        lines += ["    observed_differs <= 0;", "  end else if (observe_compare)"]
        lines += [f"    observed_differs <= {' | '.join(changes)};"]
    made[module] = "\n".join([*lines, "endmodule", "", ""])
    return True


def _only_valid(connected: Mapping[str, str], its_ports: Mapping[str, Port]) -> dict[str, str]:
    """Connections of inputs that carry data, which are 0 while they are not valid."""
    found: dict[str, str] = {}
    for port, net in connected.items():
        for data, valid in _DATA:
            match = data.fullmatch(port)
            name = match.expand(valid) if match else ""
            if all(each in connected and its_ports[each].is_input for each in (port, name)):
                found[port] = f"({connected[name]} ? {net} : {its_ports[port].bits}'d0)"
    return found


def _inside(module: str, texts: Mapping[str, str]) -> Iterator[str]:
    """Texts of a module and of all modules in it."""
    yield texts[module]
    for child in instances(texts[module]):
        if child in texts:
            yield from _inside(child, texts)


def _with_clocks(text: str, engines: Sequence[str], texts: Mapping[str, str], checked: bool) -> str:
    """Text of the top module with a clock for each engine, and what decides on it."""
    declared: list[str] = []
    added: list[str] = []

    def instance(found: re.Match[str]) -> str:
        if found[1] not in engines:
            return found[0]
        index = len(added)
        name = f"engine{index}"
        its_ports = ports(texts[found[1]])
        lines = found[0].split("\n")
        connected: dict[str, str] = {}
        for line in lines[1:-1]:
            connection = _CONNECTION.fullmatch(line)
            assert connection is not None, line
            connected[connection[1]] = connection[2]
        copied = connected | _only_valid(connected, its_ports)
        inputs = [
            (its_ports[port].bits, net)
            for port, net in copied.items()
            if its_ports[port].is_input and port != "clk"
        ]
        copied["clk"] = f"idle_clk[{index}]"
        before = ""
        checks: list[str] = []
        if checked:
            before = found[0] + "\n"
            for port, net in connected.items():
                if its_ports[port].is_input:
                    continue
                other = f"{name}_{len(checks)}"
                checks.append(
                    _CHECK.format(
                        width=width(its_ports[port].bits),
                        other=other,
                        net=net,
                        module=found[1],
                        port=port.removeprefix("\\"),
                    )
                )
                copied[port] = other
        period, settled = _PERIODS["fpgapipe_" in "".join(_inside(found[1], texts))]
        held = [(f"{name}_held{k}", bits, net) for k, (bits, net) in enumerate(inputs)]
        values = {
            "e": name,
            "k": index,
            "first": period - 1 - settled,
            "last": period - 1,
            "changed": " | ".join(f"({net} != {copy})" for copy, _, net in held),
            "takes": "\n      ".join(f"{copy} <= {net};" for copy, _, net in held),
        }
        declared.extend(f"  reg {width(bits)}{copy} = 0;\n" for copy, bits, _ in held)
        declared.append(_STATE.format(**values) + "".join(checks))
        added.append(_CONTROL.format(**values))
        for port in ("take", "compare", "differs"):
            copied[f"observe_{port}"] = f"{name}_{port}"
        head = f"  {_copy_name(found[1])} {f'{name}_copy' if checked else found[2]} (\n"
        return before + head + ",\n".join(f"    .{p} ({n})" for p, n in copied.items()) + "\n  );"

    whole = re.compile(rf"^  ({_NAME}) +({_NAME}) +\(\n(?:    \..*\n)+  \);", re.MULTILINE)
    text = whole.sub(instance, text)
    head, _, rest = text.partition(");\n")
    rest, _, _ = rest.rpartition("endmodule")
    last = len(added) - 1
    return (
        f"{head}, idle_clk, idle_wake);\n"
        f"  input [{last}:0] idle_clk;\n  output [{last}:0] idle_wake;\n"
        f"{''.join(declared)}{rest}{''.join(added)}endmodule\n\n"
    )


_STATE = """\
  reg [7:0] {e}_cycle = 0;
  reg {e}_rests = 0;
  wire {e}_differs;
  wire {e}_take = {e}_cycle == {first};
  wire {e}_compare = {e}_rests | ({e}_cycle > {first});
"""

_CONTROL = """\
  wire {e}_changed = {e}_compare ? {changed} : 1'b0;
  assign idle_wake[{k}] = ~{e}_rests | {e}_changed;
  always @(posedge clk) begin
    if ({e}_take) begin
      {takes}
    end
    if ({e}_rests) begin
      if ({e}_changed) begin
        {e}_rests <= 0;
        {e}_cycle <= 0;
      end
    end else if (({e}_cycle > {first}) & ({e}_changed | {e}_differs & ({e}_cycle > {first} + 1)))
      {e}_cycle <= 0;
    else if ({e}_cycle == {last}) {e}_rests <= 1;
    else {e}_cycle <= {e}_cycle + 1;
  end
"""

_CHECK = """\
  wire {width}{other};
  always @(posedge clk)
    if ({net} != {other}) fpgapipe_differs($sformatf("%m.{module}"), "{port}");
"""
