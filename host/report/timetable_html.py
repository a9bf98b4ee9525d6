"""A page around the picture of a timetable: zoom, pan, hover text, and tables of load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from fpgapipe.host.console import scaled
from fpgapipe.host.report.timetable import (
    Row,
    TransferBytes,
    bytes_of,
    counted,
    device_names,
    duration,
    percent,
    printable,
    rows_of,
    span_of,
)
from fpgapipe.host.report.timetable_svg import MAX_RECTANGLES, draw_svg
from fpgapipe.partition.schedule import TaskKind

if TYPE_CHECKING:
    from fpgapipe.partition.timeline import Timeline

MAX_TABLE_ROWS = 256

_CSS = """
:root { color-scheme:light dark; --page:#f4f6f9; --card:#ffffff; --text:#1b2430; --dim:#5d6b7c;
  --line:#dfe4eb; --accent:#2b6cb0; --bar:#8fc3fb; --linkbar:#5b95d6; }
@media (prefers-color-scheme: dark) { :root { --page:#0b0f14; --card:#12171e; --text:#e8edf3;
  --dim:#9aa8b8; --line:#29323d; --accent:#7db8f5; --bar:#2a6cb5; --linkbar:#4f8fd6; } }
* { box-sizing:border-box; }
body { margin:0; background:var(--page); color:var(--text); line-height:1.45;
  font-family:system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif; font-size:15px; }
main { max-width:1680px; margin:0 auto; padding:28px clamp(12px,2.5vw,40px) 40px; }
h1 { font-size:1.55rem; margin:0 0 18px; overflow-wrap:anywhere; }
h2 { font-size:1.05rem; margin:0 0 10px; }
.facts { display:flex; flex-wrap:wrap; gap:12px; margin:0 0 18px; }
.facts div, section { background:var(--card); border:1px solid var(--line); border-radius:10px; }
.facts div { padding:10px 18px 11px; min-width:128px; }
.facts dt { color:var(--dim); font-size:.82rem; } .facts dd { margin:0; font-size:1.3rem;
  font-weight:600; font-variant-numeric:tabular-nums; }
section { padding:16px 18px; margin:0 0 18px; }
.bar { display:flex; flex-wrap:wrap; align-items:center; gap:6px; margin-bottom:6px; }
.bar h2 { margin:0 auto 0 0; } .bar small { color:var(--dim); margin-right:8px; }
button { font:inherit; font-size:.86rem; color:var(--text); background:var(--page);
  padding:3px 11px; border:1px solid var(--line); border-radius:7px; cursor:pointer; }
button:hover { border-color:var(--accent); }
button:focus-visible, .view:focus-visible { outline:2px solid var(--accent); outline-offset:2px; }
.view { overflow-x:auto; } .view svg { display:block; width:100%; height:auto; min-width:640px; }
.js .view svg { cursor:grab; touch-action:pan-y; user-select:none; -webkit-user-select:none;
  min-width:0; }
.js .view svg.held { cursor:grabbing; }
.tables { display:grid; grid-template-columns:repeat(auto-fit,minmax(min(100%,560px),1fr));
  gap:18px; align-items:start; }
.tables section { margin:0; overflow-x:auto; }
table { border-collapse:collapse; width:100%; font-size:.9rem; font-variant-numeric:tabular-nums; }
th, td { text-align:right; padding:5px 7px; border-bottom:1px solid var(--line);
  white-space:nowrap; }
th:first-child, td:first-child { text-align:left; } th { color:var(--dim); font-weight:500; }
tbody tr:last-child td { border-bottom:0; }
td.meter { width:26%; min-width:48px; }
.meter i { display:block; height:10px; border-radius:5px; background:var(--line); overflow:hidden; }
.meter b { display:block; height:100%; background:var(--bar); }
.links .meter b { background:var(--linkbar); }
#tip { position:fixed; z-index:9; pointer-events:none; background:var(--text); color:var(--card);
  padding:7px 11px; border-radius:8px; font-size:.84rem; white-space:pre-line; max-width:360px;
  box-shadow:0 4px 18px #0005; } #tip::first-line { font-weight:650; }
p.dim, footer { color:var(--dim); font-size:.86rem; }
p.dim { margin:10px 0 0; }
@media print { .view svg { width:100% !important; } body { background:#fff; }
  main { padding:0; max-width:none; }
  .bar small, button, #tip { display:none; } section { break-inside:avoid; }
  :root { --card:#fff; --text:#1b2430; --dim:#5d6b7c; --line:#dfe4eb; --bar:#8fc3fb; } }
"""

# Positions are read from the picture, as shares of its span, and written again for what is in view.
_SCRIPT = r"""
(() => {
const svg = document.querySelector("svg.tt"), view = svg.parentNode, $ = s => svg.querySelector(s);
const left = +svg.dataset.left, right = +svg.dataset.right, span = +svg.dataset.span;
const top_ = +svg.dataset.top, bottom = +svg.dataset.bottom, height = svg.viewBox.baseVal.height;
const NS = svg.namespaceURI, num = (e, a) => +e.getAttribute(a);
const make = (tag, attrs, into) => { const e = document.createElementNS(NS, tag);
  for (const k in attrs) e.setAttribute(k, attrs[k]); into.append(e); return e; };
const first = svg.viewBox.baseVal.width - left - right;
const tip = document.createElement("div"); tip.id = "tip"; tip.hidden = true;
document.body.append(tip); document.documentElement.classList.add("js");
const tasks = [...svg.querySelectorAll(".t")].map(g => {
  const title = g.querySelector("title"), rects = [...g.querySelectorAll("rect")];
  g.tip = title.textContent; title.remove();
  const r = rects[0], text = g.querySelector("text");
  return { g, rects, text, link: g.parentNode.classList.contains("link"),
    from: (num(r, "x") - left) / first, size: num(r, "width") / first,
    mid: num(r, "y") + num(r, "height") / 2, tall: num(r, "height") };
});
const clip = make("rect", { y: 0, height }, make("clipPath", { id: "tt-clip" }, svg));
for (const row of svg.querySelectorAll(".row")) {
  const inner = make("g", { "clip-path": "url(#tt-clip)" }, row);
  row.querySelectorAll(".t").forEach(g => inner.append(g));
}
const mark = make("rect", { class: "ring", rx: 3, fill: "none", stroke: "var(--ink)",
  "stroke-width": 1.6, visibility: "hidden", "pointer-events": "none",
  "clip-path": "url(#tt-clip)" }, svg);
const dim = document.createElement("style"); document.head.append(dim);
let from = 0, size = 1, W = 0;
const units = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"], [1e-12, "ps"]];
function axis(plot) {
  const g = $(".axis"), width = size * span; g.replaceChildren(); if (!(span > 0)) return;
  const [f, unit] = units.find(u => width >= u[0] * 0.99999) || units[4];
  const rough = width / f / Math.max(2, Math.floor(plot / 85));
  const p = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(k => k * p).find(s => s >= rough * 0.999999);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  $(".unit").textContent = unit;
  for (let i = Math.ceil(from * span / f / step - 1e-9); ; i++) {
    const share = i * step * f / span; if (share > (from + size) * (1 + 1e-9)) break;
    const x = left + (share - from) / size * plot;
    make("line", { class: "grid", x1: x, x2: x, y1: top_, y2: bottom }, g);
    make("text", { class: "tick", x, y: top_ - 6, "text-anchor": "middle" }, g).textContent =
      (i * step || 0).toLocaleString("en", { maximumFractionDigits: digits });
  }
}
function draw() {
  const plot = W - left - right;
  svg.setAttribute("viewBox", `0 0 ${W} ${height}`); mark.setAttribute("visibility", "hidden");
  clip.setAttribute("x", left); clip.setAttribute("width", plot);
  $(".paper").setAttribute("width", W);
  for (const e of svg.querySelectorAll(".row .lane")) e.setAttribute("width", plot);
  for (const e of svg.querySelectorAll(".share")) e.setAttribute("x", W - 10);
  for (const t of tasks) {
    const seen = t.from < from + size && t.from + t.size > from;
    t.g.style.display = seen ? "" : "none"; if (!seen) continue;
    const x = left + (t.from - from) / size * plot, w = t.size / size * plot;
    t.g.classList.toggle("wide", w >= 4);
    for (const r of t.rects) { r.setAttribute("x", x); r.setAttribute("width", w); }
    const name = t.g.dataset.n, m = t.g.dataset.m; if (!name || t.tall <= 10) continue;
    const a = Math.max(x, left), b = Math.min(x + w, left + plot);
    const room = (b - a - 2.5) / (t.link ? 6 : 6.8);
    const word = name.length <= room ? name : m >= 0 && m.length <= room ? m : "";
    if (word && !t.text) t.text = make("text", { y: t.mid + (t.link ? 3.5 : 4) }, t.g);
    if (t.text) { t.text.textContent = word; t.text.setAttribute("x", (a + b) / 2); }
  }
  axis(plot);
}
let asked = false;
const soon = () => { if (!asked) { asked = true;
  requestAnimationFrame(() => { asked = false; draw(); }); } };
function show(newFrom, newSize) {
  size = Math.min(1, Math.max(1 / 400, newSize)); from = Math.min(1 - size, Math.max(0, newFrom));
  soon();
}
const zoom = (k, at = 0.5) => show(from + size * at * (1 - 1 / k), size / k);
const at = e => Math.min(1, Math.max(0,
  (e.clientX - svg.getBoundingClientRect().left - left) / (W - left - right)));
const act = { in: () => zoom(1.6), out: () => zoom(1 / 1.6), all: () => show(0, 1) };
for (const b of document.querySelectorAll("button[data-act]")) b.onclick = act[b.dataset.act];
svg.addEventListener("wheel", e => {
  if (e.ctrlKey || e.metaKey) { e.preventDefault(); zoom(Math.exp(-e.deltaY / 300), at(e)); }
  else if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
    e.preventDefault(); show(from + (e.deltaX || e.deltaY) / 900 * size, size); }
}, { passive: false });
svg.addEventListener("dblclick", e => zoom(2, at(e)));
view.addEventListener("keydown", e => {
  const key = { "+": act.in, "=": act.in, "-": act.out, "0": act.all,
    ArrowLeft: () => show(from - size / 8, size), ArrowRight: () => show(from + size / 8, size) };
  if (key[e.key] && !e.ctrlKey && !e.metaKey) { e.preventDefault(); key[e.key](); }
});
let held = null, moved = false, picked = null;
svg.addEventListener("pointerdown", e => { held = { x: e.clientX, from }; moved = false; });
addEventListener("pointerup", () => { held = null; svg.classList.remove("held"); });
addEventListener("pointercancel", () => { held = null; svg.classList.remove("held"); });
addEventListener("pointermove", e => {
  if (!held) return; const d = e.clientX - held.x;
  if (Math.abs(d) > 3) { moved = true; svg.classList.add("held"); tip.hidden = true; }
  if (moved) show(held.from - d / (W - left - right) * size, size);
});
svg.addEventListener("click", e => {
  if (moved) return; const g = e.target.closest(".t"), m = g && g.dataset.m;
  picked = m === undefined || m === null || m === picked ? null : m;
  dim.textContent = picked === null ? "" : `.tt .t:not([data-m="${picked}"]){opacity:.16}`;
});
svg.addEventListener("pointermove", e => {
  const g = e.target.closest(".t");
  tip.hidden = !g || moved && held; mark.setAttribute("visibility", g ? "visible" : "hidden");
  if (!g) return;
  const rects = [...g.querySelectorAll("rect")], last = rects[rects.length - 1], r = rects[0];
  for (const a of ["x", "width"]) mark.setAttribute(a, r.getAttribute(a));
  mark.setAttribute("y", last.getAttribute("y"));
  mark.setAttribute("height", num(r, "y") + num(r, "height") - num(last, "y"));
  tip.textContent = g.tip; tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.min(e.clientX + 14, innerWidth - box.width - 8) + "px";
  tip.style.top = (e.clientY + 18 + box.height > innerHeight
    ? e.clientY - box.height - 12 : e.clientY + 18) + "px";
});
svg.addEventListener("pointerleave", () => { tip.hidden = true;
  mark.setAttribute("visibility", "hidden"); });
const fit = () => { W = Math.max(left + right + 240, 720, view.clientWidth);
  svg.style.width = W + "px"; draw(); };
new ResizeObserver(() => { if (view.clientWidth) fit(); }).observe(view);
fit();
})();
"""


def draw_html(
    timeline: Timeline,
    *,
    title: str,
    names: Sequence[str] | None = None,
    transfer_bytes: TransferBytes = None,
    max_rectangles: int = MAX_RECTANGLES,
) -> str:
    """Draw a timetable as one page that needs nothing else, offline or printed.

    Parameters
    ----------
    timeline : Timeline
    title : str
        Heading of the page.
    names : sequence of str, optional
        Of the devices.
    transfer_bytes : mapping or callable, optional
        From kind (``SF``, ``SB``) and stage to the bytes of one transfer.
    max_rectangles : int
        Roughly the most tasks that are drawn each for itself.
    """
    svg = draw_svg(
        timeline,
        names=names,
        transfer_bytes=transfer_bytes,
        heading=False,
        max_rectangles=max_rectangles,
    )
    rows = rows_of(timeline, names)
    heading = escape(printable(title))
    facts = "".join(f"<div><dt>{dt}</dt><dd>{dd}</dd></div>" for dt, dd in _facts(timeline, rows))
    links = [row for row in rows if row.is_link]
    tables = "".join(_engine_table(timeline, [row for row in rows if not row.is_link]))
    if links:
        tables += "".join(_link_table(timeline, links, names, transfer_bytes))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{heading}</title>
<style>{_CSS}</style>
</head>
<body>
<main>
<h1>{heading}</h1>
<dl class="facts">{facts}</dl>
<section>
<div class="bar"><h2>Timetable</h2>
<small>Drag to move, Ctrl+wheel to zoom, click a task to follow its micro-batch</small>
<button type="button" data-act="out" aria-label="Zoom out">&minus;</button>
<button type="button" data-act="in" aria-label="Zoom in">+</button>
<button type="button" data-act="all">Whole</button></div>
<div class="view" tabindex="0" aria-label="Timetable; + and - zoom, arrows move, 0 shows all">
{svg}</div>
</section>
<div class="tables">{tables}</div>
</main>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _facts(timeline: Timeline, rows: list[Row]) -> Iterator[tuple[str, str]]:
    schedule = timeline.schedule
    yield "Schedule", escape(printable(schedule.kind))
    yield "Makespan", duration(timeline.makespan_s)
    yield "Bubble", percent(timeline.bubble_rate)
    yield "Devices", f"{schedule.num_devices:,}"
    yield "Micro-batches", f"{schedule.num_microbatches:,}"
    yield "Most features kept", counted(max(timeline.peak_microbatches()), "micro-batch", "es")
    span = span_of(rows)
    loads = [row.busy_s / span for row in rows if row.is_link and span > 0]
    if loads:
        yield "Busiest link", percent(max(loads))


def _engine_table(timeline: Timeline, rows: list[Row]) -> Iterator[str]:
    peaks = timeline.peak_microbatches()
    span = span_of(rows)
    head = ("Engine", "Tasks", "Busy", "Idle", "Share", "", "Features kept")
    body = []
    for row in rows:
        idle = max(0.0, span - row.busy_s)
        cells = [row.name, f"{len(row.kinds):,}", duration(row.busy_s), duration(idle)]
        kept = counted(peaks[row.device], "micro-batch", "es") if row.device < len(peaks) else ""
        body.append((cells, row.busy_s / span if span > 0 else 0.0, [kept]))
    yield from _table("Engines", "engines", head, body)


def _link_table(
    timeline: Timeline, rows: list[Row], names: Sequence[str] | None, transfer_bytes: TransferBytes
) -> Iterator[str]:
    span = max(timeline.makespan_s, span_of(rows))
    named = device_names(timeline.schedule, names)
    head = ["Link", "Transfers", "Busy", "Load", ""]
    if transfer_bytes is not None:
        head += ["Bytes", "Rate"]
    body = []
    for row in rows:
        name = f"{named[row.device]} → {named[row.destination]}"
        cells = [name, f"{len(row.kinds):,}", duration(row.busy_s)]
        tail = []
        if transfer_bytes is not None:
            pairs = zip(row.kinds.tolist(), row.stages.tolist(), strict=True)
            sizes = [bytes_of(transfer_bytes, TaskKind(kind), stage) for kind, stage in pairs]
            total = sum(size for size in sizes if size is not None)
            rate = scaled(total / span, "B/s") if span > 0 else "-"
            tail = [scaled(total, "B"), rate]
        body.append((cells, row.busy_s / span if span > 0 else 0.0, tail))
    yield from _table("Links", "links", head, body)


def _table(
    title: str,
    css: str,
    head: Sequence[str],
    body: Sequence[tuple[list[str], float, list[str]]],
) -> Iterator[str]:
    """A table whose rows are cells, a share with its meter, and more cells."""
    yield f'<section class="{css}"><h2>{title}</h2><table><thead><tr>'
    yield "".join(f'<th scope="col">{each}</th>' for each in head)
    yield "</tr></thead>\n<tbody>"
    for cells, share, tail in body[:MAX_TABLE_ROWS]:
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        yield f"<td>{percent(share)}</td>"
        yield f'<td class="meter"><i><b style="width:{100 * min(share, 1.0):.2f}%"></b></i></td>'
        yield "".join(f"<td>{escape(cell)}</td>" for cell in tail) + "</tr>\n"
    yield "</tbody></table>"
    if len(body) > MAX_TABLE_ROWS:
        yield f'<p class="dim">The first {MAX_TABLE_ROWS} of {len(body):,}.</p>'
    yield "</section>"
