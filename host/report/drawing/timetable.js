// Positions are read from each picture, as shares of its span, and written again for what is in view.
(() => {
const tip = document.createElement("div"); tip.id = "tip"; tip.hidden = true;
document.body.append(tip); document.documentElement.classList.add("js");
const dim = document.createElement("style"); document.head.append(dim);
let picked = null;
const place = e => {
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.min(e.clientX + 14, innerWidth - box.width - 8) + "px";
  tip.style.top = (e.clientY + 18 + box.height > innerHeight
    ? e.clientY - box.height - 12 : e.clientY + 18) + "px";
};
const timetable = svg => {
const view = svg.parentNode, $ = s => svg.querySelector(s);
const left = +svg.dataset.left, right = +svg.dataset.right, span = +svg.dataset.span;
const top_ = +svg.dataset.top;
let bottom = +svg.dataset.bottom, height = svg.viewBox.baseVal.height;
const NS = svg.namespaceURI, num = (e, a) => +e.getAttribute(a);
const make = (tag, attrs, into) => { const e = document.createElementNS(NS, tag);
  for (const k in attrs) e.setAttribute(k, attrs[k]); into.append(e); return e; };
const first = svg.viewBox.baseVal.width - left - right;
const tasks = [...svg.querySelectorAll(".t")].map(g => {
  const title = g.querySelector("title"), rects = [...g.querySelectorAll("rect")];
  g.tip = title.textContent; title.remove();
  const r = rects[0], text = g.querySelector("text");
  return { g, rects, text, link: g.parentNode.classList.contains("link"),
    from: (num(r, "x") - left) / first, size: num(r, "width") / first,
    mid: num(r, "y") + num(r, "height") / 2, tall: num(r, "height") };
});
const clipped = `tt-clip${document.querySelectorAll("svg.tt clipPath").length}`;
const clip = make("rect", { y: 0, height }, make("clipPath", { id: clipped }, svg));
for (const row of svg.querySelectorAll(".row")) {
  const inner = make("g", { "clip-path": `url(#${clipped})` }, row);
  row.querySelectorAll(".t").forEach(g => inner.append(g));
}
const mark = make("rect", { class: "ring", rx: 3, fill: "none", stroke: "var(--ink)",
  "stroke-width": 1.6, visibility: "hidden", "pointer-events": "none",
  "clip-path": `url(#${clipped})` }, svg);
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
const act = { in: () => zoom(1.6), out: () => zoom(1 / 1.6), all: () => show(0, 1),
  regroup: e => regroup(e.currentTarget) };
// Rows in groups stand by group, or by name: then the rows of one device are neighbours.
const grouped = [...svg.querySelectorAll(".row[data-group]")].map(g => {
  const label = g.querySelector(".name"), r = g.querySelector(".lane");
  return { g, label, group: g.dataset.group, name: label ? label.querySelector("title").textContent
    : r.querySelector("title").textContent, y: num(r, "y"), tall: num(r, "height") }; });
const heads = [...svg.querySelectorAll("text.group")], below = [...svg.querySelectorAll("text.soft")]
  .filter(e => num(e, "y") > bottom);
let byName = false, moved_ = 0;
function regroup(button) {
  byName = !byName;
  button.textContent = byName ? "By level" : "By device";
  const [outer, inner] = byName ? ["name", "group"] : ["group", "name"];
  const order = [...new Set(grouped.map(row => row[outer]))];
  const sorted = order.flatMap(key => grouped.filter(row => row[outer] === key));
  svg.querySelectorAll("text.group").forEach(e => e.remove());
  let y = num(heads[0], "y") - 12, last = null;
  for (const row of sorted) {
    if (row[outer] !== last) {
      y += last === null ? 4 : 14; last = row[outer];
      make("text", { class: "group", x: left, y: y + 8 }, svg).textContent = last; y += 16;
    }
    row.g.setAttribute("transform", `translate(0 ${y - row.y})`);
    if (row.label) row.label.firstChild.data = row[inner];
    y += row.tall + 4;
  }
  const by = y + 2 - bottom; bottom += by; height += by; moved_ += by;
  for (const e of below) e.setAttribute("transform", `translate(0 ${moved_})`);
  $(".paper").setAttribute("height", height);
  fit();
}
for (const b of view.closest("section").querySelectorAll("button[data-act]"))
{
  b.addEventListener("click", act[b.dataset.act]);
  if (b.dataset.act === "regroup") b.hidden = new Set(grouped.map(row => row.group)).size < 2;
}
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
let held = null, moved = false;
const drop = () => { held = null; svg.classList.remove("held"); };
svg.addEventListener("pointerdown", e => { held = { x: e.clientX, from }; moved = false; });
addEventListener("pointerup", drop);
addEventListener("pointercancel", drop);
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
  mark.setAttribute("transform", g.closest(".row").getAttribute("transform") || "");
  mark.setAttribute("height", num(r, "y") + num(r, "height") - num(last, "y"));
  tip.textContent = g.tip; tip.hidden = false; place(e);
});
svg.addEventListener("pointerleave", () => { tip.hidden = true;
  mark.setAttribute("visibility", "hidden"); });
const fit = () => { W = Math.max(left + right + 240, 720, view.clientWidth);
  svg.style.width = W + "px"; draw(); };
new ResizeObserver(() => { if (view.clientWidth) fit(); }).observe(view);
fit();
};
document.querySelectorAll("svg.tt").forEach(timetable);
})();
