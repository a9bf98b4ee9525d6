"""The report in a real browser: no errors, no requests, tables that sort, light and dark."""

import numpy as np
import pytest
from browser import Browser, find_browser
from report_case import fill_run, make_build

from fpgapipe.host.report.pages.page import SECTIONS, write_report

pytestmark = pytest.mark.skipif(find_browser() is None, reason="no Chromium or Chrome is installed")

WIDTHS = {"desk": 1400, "tablet": 800, "phone": 390}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    try:
        found = Browser(find_browser(), tmp_path_factory.mktemp("profile"))
    except OSError as error:
        pytest.skip(f"{find_browser()} does not start here: {error}")
    with found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_report(fill_run(make_build(tmp_path_factory.mktemp("build"))))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_it_renders_without_errors_and_asks_for_nothing(browser, page, width, scheme):
    browser.look(width=width, scheme=scheme)
    browser.open(page)
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith("data:")] == [page.as_uri()]
    assert browser.run("document.documentElement.scrollWidth") <= width
    linked = browser.run("[...document.querySelectorAll('nav a')].map(a => a.hash.slice(1))")
    found = browser.run("[...document.querySelectorAll('main section')].map(s => s.id)")
    assert found == linked
    assert len(set(found)) == len(SECTIONS) + 1  # and the glossary
    colour = browser.run("getComputedStyle(document.body).backgroundColor")
    assert colour == {"light": "rgb(243, 245, 248)", "dark": "rgb(11, 15, 20)"}[scheme]


def test_a_page_without_runs_renders_too(browser, tmp_path):
    browser.look()
    browser.open(write_report(make_build(tmp_path)))
    assert browser.complaints() == []


TABLE = "[...document.querySelectorAll('#cycles table')].at(-1)"
COLUMN = f"{TABLE}.tHead.rows[0].cells"


def column(browser, index):
    """Sort keys of a column of the table of layers, as they stand."""
    script = f"[...{TABLE}.tBodies[0].rows].map(row => row.cells[{index}])"
    return browser.run(f"{script}.map(c => c.dataset.k ?? c.textContent)")


def middle(browser, element):
    """Scroll to an element; where its middle is then."""
    browser.run(f"{element}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    return browser.run(
        f"(b => [b.x + b.width / 2, b.y + b.height / 2])({element}.getBoundingClientRect())"
    )


def test_a_click_sorts_a_table_and_another_turns_it_round(browser, page):
    browser.look()
    browser.open(page)
    last = browser.run(f"{COLUMN}.length") - 1
    before = column(browser, last)
    box = middle(browser, f"{COLUMN}[{last}].querySelector('button')")
    for state, reverse in (("ascending", False), ("descending", True)):
        browser.point(*box, click=True)
        assert browser.run(f"{COLUMN}[{last}].getAttribute('aria-sort')") == state
        after = [float(each) for each in column(browser, last)]
        assert after == sorted(map(float, before), reverse=reverse)
        assert browser.run(f"[...{COLUMN}].filter(c => c.ariaSort !== 'none').length") == 1
    assert browser.complaints() == []


def test_the_keyboard_sorts_a_table(browser, page):
    browser.open(page)
    before = column(browser, 0)
    browser.run(f"{COLUMN}[0].querySelector('button').focus()")
    browser.press("Enter")
    assert column(browser, 0) == sorted(before)
    assert before != sorted(before)
    browser.press("Tab")
    assert browser.run(f"document.activeElement.parentNode === {COLUMN}[1]")


def test_the_button_changes_the_colours(browser, page):
    browser.look(scheme="dark")
    browser.open(page)
    button, colour = "document.getElementById('theme')", "getComputedStyle(document.body).color"
    dark = browser.run(colour)
    assert browser.run(f"{button}.textContent") == "Light"
    browser.run(f"{button}.click()")
    assert browser.run(f"{button}.textContent") == "Dark"
    light = browser.run(colour)
    assert light != dark
    browser.look(scheme="light")
    browser.open(page)
    assert browser.run(colour) == light
    browser.run(f"{button}.click()")
    assert browser.run(colour) == dark


def test_pointing_at_a_task_tells_its_cycles(browser, page):
    browser.look()
    browser.open(page)
    box = middle(browser, "document.querySelector('#timetable .t rect')")
    browser.point(*box)
    tip = browser.run("document.getElementById('tip').textContent")
    assert tip.startswith("F0: forward, micro-batch 0\nEvent simulation: u280-0, stage 0\n")
    assert "\nRTL simulation: " in tip
    assert not browser.run("document.getElementById('tip').hidden")


ROWS = "[...document.querySelectorAll('#timetable .row')]"
PLACES = f"{ROWS}.map(g => g.querySelector('.lane').getBoundingClientRect().top)"


def test_rows_of_a_device_can_be_neighbours(browser, page):
    browser.look()
    browser.open(page)
    button = "document.querySelector('button[data-act=regroup]')"
    places = browser.run(PLACES)
    assert places == sorted(places)  # three levels of two devices
    browser.run(f"{button}.click()")
    by_device = browser.run(PLACES)
    assert np.argsort(by_device).tolist() == [0, 2, 4, 1, 3, 5]
    names = f"{ROWS}.map(g => g.querySelector('.name').firstChild.data)"
    assert browser.run(names)[::2] == ["Event simulation", "Cycle model", "RTL simulation"]
    heads = "[...document.querySelectorAll('#timetable text.group')].map(e => e.textContent)"
    assert browser.run(heads) == ["u280-0", "u280-1"]
    lowest = browser.run("document.querySelector('#timetable svg').getBoundingClientRect().bottom")
    assert max(by_device) + 30 <= lowest
    browser.run(f"{button}.click()")
    assert browser.run(PLACES) == places
    assert browser.complaints() == []


def test_paper_is_light_and_without_buttons(browser, page):
    browser.look(scheme="dark", media="print")
    browser.open(page)
    assert browser.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.run("getComputedStyle(document.querySelector('h1')).color") == "rgb(27, 36, 48)"
    assert browser.complaints() == []
    browser.look()
