"""The opening of a report, and the page that compares several builds and runs."""

import json
import re
import shutil

import pytest
from report_case import fill_run, make_build

from fpgapipe.errors import UserError
from fpgapipe.host.report.pages.findings import findings
from fpgapipe.host.report.pages.page import make_page
from fpgapipe.host.report.pages.several import gather, make_comparison
from fpgapipe.host.report.pages.subject import Subject


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two builds with runs, and one without."""
    root = tmp_path_factory.mktemp("several")
    fill_run(make_build(root / "a"))
    fill_run(make_build(root / "b", devices=4), seed=1)
    make_build(root / "bare", devices=1)
    return root


def plain(html):
    return re.sub(r"<[^>]*>", "", html).replace("&minus;", "-")


def subject(folder):
    return gather([folder])[0].subject


def test_a_report_opens_with_two_sentences(folders):
    found = plain(findings(subject(folders / "a")))
    assert len(re.findall(r"[.](?: |$)", found)) == 2, found
    assert re.match(
        r"In simulation 2 devices take [0-9,]+ cycles for a mini-batch of 32 samples, "
        r"predicted 1(?:[.]\d)? % too low: [0-9.]+ ksamples/s at 300 MHz[.] Trained in "
        r"the bit-exact model for [0-9,]+ mini-batches, its loss went from [0-9.]+ to [0-9.]+, "
        r"and it finds the class of [0-9.]+ % of the samples it never saw, ",
        found,
    ), found
    assert found.endswith("PyTorch.")
    page = make_page(subject(folders / "a"))
    assert page.index('class="sentence"') < page.index("is cut into")


def test_what_is_not_there_is_said(folders, tmp_path):
    found = plain(findings(subject(folders / "bare")))
    assert re.fullmatch(
        r"1 device should take [0-9,]+ cycles for a mini-batch of 32 samples, by the plan: no "
        r"mini-batch has been simulated yet[.] It has not been trained yet[.]",
        found,
    ), found
    infers = Subject.of(make_build(tmp_path / "i", train=False))
    assert findings(infers).endswith("The build is for inference, so nothing is trained.")


def test_builds_are_compared(folders):
    compared = gather([folders / name for name in ("a", "b", "bare")])
    assert [each.label for each in compared] == ["a", "b", "bare"]
    page = make_comparison(compared)
    assert page == make_comparison(compared)
    words = plain(page)
    for name in ("a", "b"):
        measured = json.loads((folders / name / "run/measured.json").read_text())
        assert f"{measured['minibatch_cycles']['rtl']:,}" in words
        for backend in ("model", "sim", "torch"):
            assert f"{name}: {backend}" in words
    assert "bare: 1 device should take" in words
    assert re.search(r"is the fastest, with [0-9,.]+ samples a second", words)
    assert re.search(r"finds most classes, [0-9.]+ % of unseen samples", words)
    assert page.count("<svg") == 2
    assert set(re.findall(r'(?:src|href)="([^"#]+)', page)) <= {"data:,"}


def test_runs_of_one_build_are_compared(folders, tmp_path):
    compared = gather([folders / "a/run/model", folders / "a/run/torch"])
    assert [each.label for each in compared] == ["model", "torch"]
    assert [run.name for each in compared for run in each.subject.runs] == ["model", "torch"]
    words = plain(make_comparison(compared))
    assert "model: In simulation" in words or "model: 2 devices" in words
    with pytest.raises(UserError, match="a/run/none has no log of a run"):
        gather([folders / "a/run/none"])
    with pytest.raises(UserError, match="is named twice; there is nothing to compare"):
        gather([folders / "a", folders / "." / "a"])


def test_figures_as_json(folders, cli):
    code, out, err = cli("report", folders / "a", folders / "a/run/torch", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["page"].endswith("comparison.html")
    whole, run = found["builds"]
    assert [each["name"] for each in whole["runs"]] == ["model", "sim", "torch"]
    assert [each["name"] for each in run["runs"]] == ["torch"]
    made = subject(folders / "a")
    assert whole["simulated_cycles"] == made.measured.minibatch_cycles.rtl
    assert whole["samples_per_s"] == 32 * 300e6 / whole["simulated_cycles"]
    assert whole["runs"][2] == run["runs"][0]
    assert run["runs"][0]["loss"] == made.runs[2].steps[-1].loss
    assert [each["device"] for each in whole["resources"]] == made.names
    assert whole["micro_batches"] == made.plan.num_microbatches


def test_settings_that_are_no_json_have_no_figures(folders, cli, tmp_path):
    shutil.copytree(folders / "b", tmp_path / "c")
    (tmp_path / "c/run/model/settings.json").write_text('{"learning_rate": 1e999}')
    code, out, err = cli("report", tmp_path / "c", "--json")
    assert code == 0, err
    run = json.loads(out)["builds"][0]["runs"][0]
    assert run["settings"] == {}
    assert run["faults"][-1].endswith("settings.json is damaged: no JSON object of finite numbers.")


def test_the_command(folders, cli, tmp_path):
    a, b = folders / "a", folders / "b"
    code, out, err = cli("report", a, b)
    assert (code, out, err) == (0, f"written to {a / 'run/comparison.html'}\n", "")
    code, out, _ = cli("report", a, b, "-o", tmp_path / "x.html")
    assert code == 0
    assert (tmp_path / "x.html").read_text() == (a / "run/comparison.html").read_text()
    code, _, err = cli("report", a, b, "--measure")
    assert (code, "--measure simulates one build; measure each" in err) == (2, True)
    code, _, err = cli("report", a, tmp_path / "nothing")
    assert (code, "is no build folder" in err) == (2, True)
