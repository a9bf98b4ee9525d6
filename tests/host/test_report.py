"""The report: its figures, what comes from files, faults of these, what is written."""

import itertools
import json
import re
import shutil
from html import unescape
from html.parser import HTMLParser

import pytest
from report_case import fill_run, make_build, measured

from fpgapipe.errors import UserError
from fpgapipe.host.build.build import open_build
from fpgapipe.host.report.drawing.elements import missed, text
from fpgapipe.host.report.drawing.theme import DARK, LIGHT
from fpgapipe.host.report.pages.glossary import WORDS
from fpgapipe.host.report.pages.inputs import read_measured, read_runs
from fpgapipe.host.report.pages.page import make_page, write_report
from fpgapipe.host.report.pages.subject import Subject
from fpgapipe.host.terminal.console import count
from fpgapipe.network import graph_json
from fpgapipe.partition.pricing.cycle_account import accounts
from fpgapipe.partition.pricing.prediction import PipelineTiming

EVIL = "<script>alert(1)</script>"
VOID = {"meta", "br", "link"}


class Page(HTMLParser):
    """Checks that elements close in order; collects addresses, names and tables."""

    def __init__(self, source):
        super().__init__()
        self.open, self.addresses, self.names, self.tables, self.scripts = [], [], [], [], 0
        self.feed(source)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.addresses += [attrs[name] for name in ("src", "href") if name in attrs]
        self.names += [attrs["id"]] if "id" in attrs else []
        self.scripts += tag == "script"
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return fill_run(make_build(tmp_path_factory.mktemp("build")))


@pytest.fixture(scope="module")
def page(build):
    return make_page(Subject.of(build))


def words(page):
    """Text of a page as a reader sees it, without elements."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", page)))


def number(cell):
    return float(cell.replace(",", ""))


# The whole page -----------------------------------------------------------------------------------


def test_the_page_needs_nothing_else_and_its_links_lead_somewhere(page):
    parsed = Page(page)
    assert re.findall(r"(?:https?:)?//[a-z][^\s\"'<,]+", page) == ["http://www.w3.org/2000/svg"]
    assert "@import" not in page
    assert "url(http" not in page
    inner = {each[1:] for each in parsed.addresses if each.startswith("#")}
    assert inner <= set(parsed.names)
    assert set(parsed.addresses) - {f"#{each}" for each in inner} == {"data:,"}
    assert len(parsed.names) == len(set(parsed.names))
    assert {f"g-{ident}" for ident in WORDS} <= set(parsed.names)


def test_equal_input_gives_equal_bytes(build, page):
    assert make_page(Subject.of(build)) == page


def test_the_head_has_the_figures(build, page):
    shown = words(page)
    cycles = measured(build)["minibatch_cycles"]
    event, rtl = cycles["event"], cycles["rtl"]
    assert f"Cycles a mini-batch, predicted {event:,} event simulation" in shown
    gap = missed((event - rtl) / rtl)
    assert f"Cycles a mini-batch, simulated {rtl:,} RTL; predicted {gap}" in shown
    assert f"Samples per second {32 * 300e6 / rtl:,.0f} RTL, at the clock" in shown
    plan = build.plan
    busy = [
        4 * (node.forward_s + node.input_gradient_s + node.weight_gradient_s) + node.update_s
        for node in plan.nodes
    ]
    efficiency = sum(busy) / 2 / (rtl / 300e6)
    assert f"Pipeline efficiency {100 * efficiency:.3g} % plan's ideal over simulated time" in shown
    last = [
        json.loads(line) for line in (build.folder / "run/model/log.jsonl").read_text().splitlines()
    ][-2]
    assert f"Loss {last['loss']:.4g} model, step 263" in shown
    assert "Validation accuracy 98.4 % model, epoch 5; PyTorch 98.6 %" in shown


def test_every_difference_is_that_of_its_row(page):
    tables = [table for table in Page(page).tables if "RTL" in table[0]]
    assert [len(table) - 1 for table in tables] == [1, 2, 24]
    for head, *rows in tables:
        rtl = head.index("RTL")
        gaps = [i for i, heading in enumerate(head) if heading.startswith("Δ of ")]
        assert len(gaps) == len([h for h in head if h in ("Closed form", "Cycle model")]) + (
            "Event simulation" in head
        )
        for row, gap in itertools.product(rows, gaps):
            value, reference = number(row[gap - 1]), number(row[rtl])
            shown = row[gap].replace("\u2212", "-").removesuffix(" ▲").removesuffix(" %")
            found = 100 * (value - reference) / reference
            assert float(shown) == pytest.approx(found, abs=0.005)
            assert row[gap].endswith("▲") == (abs(found) > 2)


def test_resources_are_those_of_the_build(build, page):
    report = build.resources[0]
    limits, blocks = (
        next(t for t in Page(page).tables if t[0][0] == heading)
        for heading in ("Resource", "Block")
    )
    assert limits[0][1:] == ["Whole device", "Die SLR0", "Die SLR1", "Die SLR2"]
    used, most = report["dies"][0]["used"]["lut"], report["dies"][0]["limits"]["lut"]
    assert limits[1][2] == f"{100 * used / most:.3g} % {used:,} of {most:,}"
    names = [row[0].lower() for row in blocks[1:]]
    assert names == [*report["blocks"], "all"]
    assert [number(row[1]) for row in blocks[1:-1]] == [b["lut"] for b in report["blocks"].values()]


def test_what_is_over_a_limit_is_marked(tmp_path):
    build = make_build(tmp_path)
    build.__dict__["resources"] = json.loads(json.dumps(build.resources))
    build.resources[0]["used"]["dsp"] = 99_999
    shown = words(make_page(Subject.of(build)))
    assert re.search(r"1.47e\+03 %, over the limit|1,?47\d.* %, over the limit", shown)


def test_a_build_without_runs_says_what_makes_them(tmp_path):
    build = make_build(tmp_path)
    shown = words(make_page(Subject.of(build)))
    command = f"This makes it: fpgapipe report {tmp_path} --measure"
    for what in ("Cycle model and RTL simulation: not measured.", "Not measured."):
        assert f"{what} {command}" in shown
    assert f"Counters: not measured. {command}" in shown
    assert f"fpgapipe run {tmp_path} --backend model" in shown
    assert f"fpgapipe run {tmp_path} --backend torch" in shown
    assert "not measured yet" in shown
    assert "not trained yet" in shown
    assert "Event simulation of the plan" in shown


def test_a_build_for_inference(tmp_path):
    page = make_page(Subject.of(make_build(tmp_path, train=False)))
    shown = words(page)
    assert "Inference of digits-cnn" in shown
    assert "The build is for inference: nothing is trained." in shown
    assert 'class="SB"' not in page  # no arrow back
    assert "backward" not in re.search(r"<svg [^>]*class=\"tt\".*?</svg>", page, re.DOTALL)[0]


def test_many_devices_take_several_rows(tmp_path):
    page = make_page(Subject.of(make_build(tmp_path, devices=6)))
    assert page.count('<g class="device">') == 6
    assert page.count('<g class="wire">') == 5
    Page(page)


def test_sections_use_colours_that_exist(page):
    used = set(re.findall(r"var\(--(\w+)\)", page))
    assert used <= LIGHT.keys() == DARK.keys()


# What comes from files ----------------------------------------------------------------------------


def test_everything_that_comes_from_a_file_is_escaped(tmp_path):
    def change(plan, graph):
        first, *others = plan.stages
        name = json.dumps(first.layers[0])
        first = first.model_copy(update={"layers": (EVIL, *first.layers[1:])})
        told = {"network": EVIL, "stages": (first, *others), "reason": EVIL}
        changed = graph_json.to_json(graph).replace(name, json.dumps(EVIL))
        return plan.model_copy(update=told), graph_json.from_json(changed)

    build = fill_run(make_build(tmp_path, change=change))
    shutil.move(tmp_path / "run/model", tmp_path / "run/<script>a")
    path = tmp_path / "run/measured.json"
    value = json.loads(path.read_text())
    value["devices"][0]["layers"][0] |= {"pass": EVIL}
    value["devices"][0]["tasks"][0]["task"] = value["devices"][0]["tasks"][0]["kind"] = EVIL
    value["devices"][0]["counters"] |= {f"{EVIL}_BUSY": 5}
    path.write_text(json.dumps(value))
    (tmp_path / "run/sim/settings.json").write_text(json.dumps({"data": EVIL, "seed": [EVIL]}))
    page = make_page(Subject.of(build))
    assert Page(page).scripts == 1
    assert EVIL not in page
    assert text(EVIL) in page
    assert "<script>a" not in page


GOOD = '{"clk_hz": 3e8, "minibatch_cycles": {}'
DAMAGED = {
    "none": ("", "file: Invalid JSON"),
    "cut off": (GOOD, "file: Invalid JSON"),
    "bytes": (b"\xff\xfe\0", "file: Invalid JSON"),
    "a list": ("[]", "file: Input should be an object"),
    "no clock": ('{"minibatch_cycles": {}}', "clk_hz: Field required"),
    "clock of 0": (
        '{"clk_hz": 0, "minibatch_cycles": {}}',
        "clk_hz: Input should be greater than or equal to 1",
    ),
    "no number": (
        '{"clk_hz": 1, "minibatch_cycles": {"rtl": NaN}}',
        "minibatch_cycles.rtl: Input should be a finite number",
    ),
    "no cycles": (
        '{"clk_hz": 3e8, "minibatch_cycles": {"rtl": 0}}',
        "minibatch_cycles: Value error, a mini-batch takes at least a cycle",
    ),
    "no devices": (GOOD.replace("{}", '{"rtl": 5}') + "}", ""),
    "devices": (GOOD + ', "devices": [{}]}', "has 1 device, the plan 2"),
    "links": (GOOD + ', "links": [{"from": 0, "to": 7}]}', "has a link of a device that the plan"),
    "times": (
        GOOD + ', "devices": [{"tasks": [{"task": "F0@0", "kind": "F", "microbatch": 0,'
        ' "rtl": [1]}]}, {}]}',
        "devices.0.tasks.0.rtl",
    ),
}


@pytest.mark.parametrize(("content", "why"), DAMAGED.values(), ids=DAMAGED)
def test_measurements_that_cannot_be_used(build, tmp_path, content, why):
    folder = tmp_path / "b"
    shutil.copytree(build.folder, folder)
    path = folder / "run/measured.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    page = make_page(Subject.of(open_build(folder)))
    Page(page)
    assert (str(path) in words(page)) == bool(why)
    assert why in words(page)
    assert "Loss of each mini-batch" in page


def test_measurements_of_some_levels_only(build, tmp_path):
    folder = tmp_path / "b"
    shutil.copytree(build.folder, folder)
    path = folder / "run/measured.json"
    value = json.loads(path.read_text())
    value["minibatch_cycles"]["rtl"] = None
    for device in value["devices"]:
        device["counters"] = {}
        for each in device["tasks"] + device["layers"]:
            each["rtl"] = None
    path.write_text(json.dumps(value))
    page = make_page(Subject.of(open_build(folder)))
    Page(page)
    assert "RTL simulation: not measured." in page
    assert "Counters: not measured." in page
    # The simulated run counts cycles, too.
    ran = count(Subject.of(open_build(folder)).simulated_cycles)
    assert f"Cycles a mini-batch, simulated {ran}" in words(page)


def test_a_folder_in_place_of_a_file(build, tmp_path):
    (tmp_path / "measured.json").mkdir()
    found, why = read_measured(tmp_path / "measured.json")
    assert found is None
    assert why == f"{tmp_path / 'measured.json'} is a folder, not a file."


def test_damaged_lines_of_a_log_are_left_out_and_named(tmp_path):
    log = tmp_path / "sim/log.jsonl"
    log.parent.mkdir()
    good = '{"step": 0, "epoch": 0, "samples": 4, "loss": 2.5, "correct": 1, "backend": "sim"}'
    lines = [good, "\0\0", '{"step": -1}', "[]", "7", good, "[" * 5000]
    log.write_text("\n".join([*lines, '{"step": 1, "epo']))  # cut off: no fault
    (log.parent / "settings.json").write_text("[]")
    (run,) = read_runs(tmp_path)
    assert [each.loss for each in run.steps] == [2.5, 2.5]
    first, second, _, more, settings = run.faults
    assert first == f"{log}, line 2 is damaged: '\\x00\\x00'."
    assert second.startswith(f"{log}, line 3 cannot be used: step: Input should be greater than or")
    assert more == f"{log}: 2 further lines cannot be used."
    assert settings == f"{tmp_path}/sim/settings.json is damaged: no JSON object of finite numbers."


def test_a_loss_that_is_no_number_leaves_a_gap(tmp_path):
    build = make_build(tmp_path)
    lines = [
        {"step": i, "epoch": 0, "samples": 4, "loss": loss, "correct": 1}
        for i, loss in enumerate([2.0, float("nan"), None, 1.0, 0.5])
    ]
    log = tmp_path / "run/model/log.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = make_page(Subject.of(build))
    Page(page)
    path = re.search(r'<path class="line s1" d="([^"]*)"', page)[1]
    assert [path.count(pen) for pen in "ML"] == [2, 1]
    assert "Training accuracy of each epoch" in page


# Files that are written ---------------------------------------------------------------------------


def test_the_command_writes_page_and_trace(build, cli, tmp_path):
    code, out, err = cli("report", build.folder)
    assert (code, err) == (0, "")
    assert out == f"written to {build.folder / 'run/report.html'}\n"
    page = (build.folder / "run/report.html").read_text()
    assert '<a href="trace.json" download>' in page
    assert cli("report", build.folder, "-o", tmp_path / "p q.html")[0] == 0
    (link,) = re.findall(r'<a href="([^"#]*)" download>', (tmp_path / "p q.html").read_text())
    assert (tmp_path / link).samefile(build.folder / "run/trace.json")
    trace = json.loads((build.folder / "run/trace.json").read_text())
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
    assert names[:3] == [
        "Event simulation: u280-0",
        "Event simulation: u280-1",
        "Cycle model: u280-0",
    ]
    ends = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            assert event["ts"] >= ends.get(event["tid"], 0) - 1e-9
            ends[event["tid"]] = event["ts"] + event["dur"]
    tasks = sum(len(device["tasks"]) for device in measured(build)["devices"])
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == 3 * tasks


def test_faults_of_the_user(build, cli, tmp_path):
    code, _, err = cli("report", tmp_path / "nowhere", "--measure")
    assert code == 2
    assert f"{tmp_path / 'nowhere'} is no build folder" in err
    output = tmp_path / "no/such/page.html"
    code, _, err = cli("report", build.folder, "-o", output)
    assert (code, err) == (2, f"error: {output}: cannot be written: No such file or directory\n")
    with pytest.raises(UserError, match="is a folder, not a file"):
        write_report(build, tmp_path)


def test_no_output_takes_the_place_of_a_builds_own_file(build, cli, tmp_path):
    folder = tmp_path / "b"
    shutil.copytree(build.folder, folder)
    (folder / "new").mkdir()
    (tmp_path / "link").symlink_to(folder / "devices/0/image.bin")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    schedule = ("schedule", "gpipe", "--stages", 1, "--micro-batches", 1)
    plan = ("plan", "lenet5", "--board", "u280", "--batch", 1)
    for command, file in [
        (("report", folder, "-o"), folder / "plan.json"),
        (("report", folder, "-o"), folder / "new/../network.json"),
        (("report", build.folder, "-o"), folder / "manifest.json"),
        (("report", folder, "--measure", "-o"), tmp_path / "link"),
        (("report", folder, "-o"), folder / "run/trace.json"),
        (("report", folder, "-o"), folder / "run/model/log.jsonl"),
        ((*schedule, "--svg"), folder / "run/measured.json"),
        ((*schedule, "--csv"), folder / "run/model/new"),
        ((*plan, "-o"), folder / "plan.json"),
        ((*plan, "--trace"), folder / "devices/0/program.bin"),
        (("bench", "cluster", "--trace"), folder / "cluster.json"),
    ]:
        fault = f"is a file of the build {folder}, which it would destroy; name another"
        assert cli(*command, file) == (2, "", f"error: {file}: {fault}\n")
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for file in ("report.html", "run/report.html", "run/mine.html", "new/report.html"):
        assert cli("report", folder, "-o", folder / file)[0] == 0
    assert cli("report", folder)[0] == 0


def test_measure_measures_first(build, cli, monkeypatch, tmp_path):
    folder = tmp_path / "b"
    shutil.copytree(build.folder, folder)
    (folder / "run/measured.json").unlink()

    def measure_build(found, *, progress):
        progress(1, 2)
        (found.folder / "run/measured.json").write_text(json.dumps(measured(found)))

    place = "fpgapipe.host.make.report.measure_build"
    monkeypatch.setattr(place, measure_build)
    assert cli("report", folder, "--measure")[0] == 0
    assert "RTL simulation: u280-1" in (folder / "run/trace.json").read_text()

    def fails(found, *, progress):
        raise OSError(28, "No space left on device", "measured.new")

    monkeypatch.setattr(place, fails)
    code, _, err = cli("report", folder, "--measure")
    assert (code, err) == (2, "error: measured.new cannot be written: No space left on device\n")


def test_runs_that_are_not_alike_say_so(build, tmp_path):
    folder = tmp_path / "b"
    shutil.copytree(build.folder, folder)
    assert "not alike" not in make_page(Subject.of(open_build(folder)))
    (folder / "run/torch/settings.json").write_text('{"seed": 2, "learning_rate": 0.05}')
    shown = words(make_page(Subject.of(open_build(folder))))
    assert "The runs are not alike: they differ in seed." in shown


def test_layers_that_run_together_are_one_row(page):
    rows = next(table for table in Page(page).tables if table[0][0] == "Layer")
    assert rows[1][:3] == ["conv1, relu1", "conv, relu", "forward"]


def test_the_cycles_of_an_array_add_up_to_the_minibatch(build, tmp_path):
    folder = tmp_path / "b"
    shutil.copytree(build.folder, folder)
    path = folder / "run/measured.json"
    value = json.loads(path.read_text())
    step = PipelineTiming.of(build.pipeline).cluster
    for device, account in zip(value["devices"], accounts(build.pipeline, step), strict=True):
        device["spent"] = account.by_unit()
    path.write_text(json.dumps(value))
    measured, _ = read_measured(path)
    page = words(make_page(Subject.of(open_build(folder))))
    assert "What each array does in the cycles of the mini-batch" in page
    for device in measured.devices:
        rows = [each for each in device.spent if each.array == 0]
        assert sum(each.cycles for each in rows) == pytest.approx(step.cycles, abs=len(rows))
        assert {each.cause for each in rows} >= {"products", "waits for vector operations"}
        assert all(each.cause in page for each in rows)
