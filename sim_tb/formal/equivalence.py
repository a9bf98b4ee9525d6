"""Proves that two Verilog texts are equivalent, module by module, with Yosys and its SAT solver.

It is used to check the result of `fpgapipe.sim_tb.native.clock_enable`. Modules of the same name
must have the same registers and memories with the same initial values. Both modules are then opened
at their registers and at their submodules: the next values of registers, the inputs of submodules
and the outputs of the module become functions of the registers, the outputs of submodules and the
inputs of the module. The solver shows that these functions are equal.

Each memory is represented by one arbitrary row: that row is a register, and reads of all other rows
are inputs.
"""

import re
from pathlib import Path

from fpgapipe.errors import ToolError
from fpgapipe.sim_tb.formal.formal import ProofError, warm_yosys
from fpgapipe.tools import last_lines, run_tool

_NAME = r"\\\S+|[A-Za-z_][\w$]*"
_INDEX = r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]"
_MODULE = re.compile(rf"^module ({_NAME})", re.MULTILINE)
_MEMORY = re.compile(rf"^  reg (\[\d+:0\]) ({_NAME}) *\[\d+:0\];\n", re.MULTILINE)
_INITIAL = re.compile(r"^  initial begin\n.*?^  end\n", re.MULTILINE | re.DOTALL)
_REGISTER = re.compile(rf"^  reg (?:\[\d+:0\] )?({_NAME}) ?(?:= .*)?;\n", re.MULTILINE)
_PORT = re.compile(r"^  (?:input|output) .*;\n", re.MULTILINE)
_INSTANCE = re.compile(rf"^  ({_NAME}) +(?:{_NAME}) +\($", re.MULTILINE)

_SCRIPT = """\
log proving {name}
design -reset
design -copy-from all -as before before{number}
design -copy-from all -as after after{number}
{modules}
opt_clean -purge
expose -shared -evert -evert-dff {selection}
miter -equiv -flatten before after miter
cd miter
select -assert-none t:$dff* t:$adff* t:$sdff* t:$dlatch* t:$mem*
opt_merge
sat -verify -prove trigger 0
cd ..
"""


def modules_of(verilog: str) -> dict[str, str]:
    """Text of each module, by its name."""
    parts = re.split(r"^(?=module )", verilog, flags=re.MULTILINE)[1:]
    return {found[1]: part for part in parts if (found := _MODULE.match(part))}


def prove_equal(before: str, after: str, work: Path, *, timeout_s: int = 600) -> list[str]:
    """Prove that each module of one text is equivalent to that in another text.

    Parameters
    ----------
    before, after : str
        Verilog that `fpgapipe.hw.rtl.verilog` generated, and the rewritten one.
    work : Path
        Folder for the designs, the script and the log.
    timeout_s : int
        Time limit for all modules together, seconds.

    Returns
    -------
    list of str
        Names of the modules whose text differs; all of them are equivalent.

    Raises
    ------
    ProofError
        If the equivalence of a module cannot be proven; the message names the module.
    UserError
        If Yosys is missing.
    """
    work.mkdir(parents=True, exist_ok=True)
    log = work / "prove.log"
    log.write_text("")
    old, new = modules_of(before), modules_of(after)
    if differing := old.keys() ^ new.keys():
        raise ProofError(f"not both texts have the modules {', '.join(sorted(differing))}", "", log)
    changed = [name for name in old if old[name] != new[name]]
    texts = [_stub(text) for text in old.values()]
    script = ["read_verilog -noopt design.v", "proc -norom", "design -save all"]
    for number, name in enumerate(changed):
        registers = _registers(old[name])
        if registers != _registers(new[name]) or _memories(old[name]) != _memories(new[name]):
            message = f"module {name} has other registers or memories, or other initial values"
            raise ProofError(message, "", log)
        sides = {"before": old[name], "after": new[name]}
        for side, text in sides.items():
            texts.append(_opened(text, f"{side}{number}", registers))
        inside = {kind for kind in _INSTANCE.findall(old[name]) if kind in old}
        script.append(
            _SCRIPT.format(
                name=name,
                number=number,
                modules="\n".join(f"design -copy-from all ={kind}" for kind in sorted(inside)),
                selection=" ".join(f"{side}/a:cut {side}/c:* {side}/x:*" for side in sides),
            )
        )
    (work / "design.v").write_text("\n".join(texts))
    (work / "prove.ys").write_text("\n".join(script))
    yosys = warm_yosys(log)
    try:
        run_tool([yosys, "-Q", "-T", "prove.ys"], log=log, cwd=work, timeout_s=timeout_s,
                 name="Yosys")  # fmt: skip
    except ToolError as error:
        tried = re.findall(r"^proving (.*)$", log.read_text(errors="replace"), re.MULTILINE)
        if not tried:
            raise
        message = f"module {tried[-1]} is not shown to be the same: {error}"
        raise ProofError(message, last_lines(log), log) from None
    return changed


def _registers(text: str) -> dict[str, str]:
    """Declarations of a module's registers, without variables that only carry values in a block."""
    clocked = set(re.findall(rf"({_NAME}) ?(?:\[[\d:]+\])? ?<= ", text))
    return {found[1]: found[0] for found in _REGISTER.finditer(text) if found[1] in clocked}


def _memories(text: str) -> list[str]:
    """Declarations and initial contents of a module's memories."""
    return [found[0] for each in (_MEMORY, _INITIAL) for found in each.finditer(text)]


def _stub(text: str) -> str:
    """Black box of a module, which has only its ports."""
    head, _, body = text.partition(";\n")
    return f"(* blackbox *)\n{head};\n{''.join(_PORT.findall(body))}endmodule\n"


def _opened(text: str, name: str, registers: dict[str, str]) -> str:
    """Module under another name, with marked registers and with memories of one row."""
    for width, memory in _MEMORY.findall(text):
        text = _with_one_row(text, width, memory)
    text = _REGISTER.sub(
        lambda found: f"  (* cut *) {found[0]}" if found[1] in registers else found[0], text
    )
    return _MODULE.sub(lambda _: f"module {name} ", text, count=1)


def _with_one_row(text: str, width: str, memory: str) -> str:
    """Replace a memory by one row, the number of which is an input."""
    bare = re.sub(r"\W", "_", memory)
    row, chosen, other = (f"fpgapipe_{bare}_{part}" for part in ("row", "chosen", "other"))
    place = rf"(?<![\w$.\\]){re.escape(memory)} *{_INDEX}"
    text = re.sub(rf"^  reg {re.escape(width)} {re.escape(memory)} *\[.*\n",
                  f"  input [31:0] {chosen};\n  input {width} {other};\n"
                  f"  (* cut *) reg {width} {row};\n", text, flags=re.MULTILINE)  # fmt: skip
    text = re.sub(rf"^    {place} = .*\n", "", text, flags=re.MULTILINE)  # initial contents
    text = re.sub(
        rf"^( +){place}(\S*) (<?=) ",
        lambda found: f"{found[1]}if (({found[2]}) == {chosen}) {row}{found[3]} {found[4]} ",
        text,
        flags=re.MULTILINE,
    )
    text = re.sub(place, lambda found: f"(({found[1]}) == {chosen} ? {row} : {other})", text)
    return text.replace("(", f"({chosen}, {other}, ", 1)
