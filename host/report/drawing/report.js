// Sorts tables by click or key, and changes between light and dark.
(() => {
const lists = new WeakMap();
function sort(th) {
  const table = th.closest("table"), body = table.tBodies[0], heads = [...th.parentNode.cells];
  const column = heads.indexOf(th), down = th.getAttribute("aria-sort") === "ascending";
  if (!lists.has(body)) lists.set(body, [...body.rows]);  // the order of the page settles ties
  const key = row => { const cell = row.cells[column];
    return "k" in cell.dataset ? cell.dataset.k : cell.textContent; };
  const rows = lists.get(body).map(row => [key(row), row]);
  const numbers = rows.every(([k]) => k === "" || !isNaN(k));
  const compare = numbers ? (a, b) => a - b
    : (a, b) => a.localeCompare(b, "en", { numeric: true });
  rows.sort(([a], [b]) => a === "" || b === "" ? (a === "") - (b === "")
    : down ? compare(b, a) : compare(a, b));
  body.append(...rows.map(([, row]) => row));
  for (const each of heads) each.setAttribute("aria-sort", "none");
  th.setAttribute("aria-sort", down ? "descending" : "ascending");
}
for (const button of document.querySelectorAll("table.sortable th button"))
  button.addEventListener("click", () => sort(button.closest("th")));

const root = document.documentElement, button = document.getElementById("theme");
const prefers = matchMedia("(prefers-color-scheme: dark)");
const dark = () => (root.dataset.theme || (prefers.matches ? "dark" : "light")) === "dark";
const name = () => {
  button.textContent = dark() ? "Light" : "Dark";
  button.setAttribute("aria-label", `Change to ${dark() ? "light" : "dark"} colours`);
};
button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
prefers.addEventListener("change", name);
button.hidden = false;
name();

// The section in view is marked in the list of sections.
const links = new Map([...document.querySelectorAll("nav a")].map(a => [a.hash.slice(1), a]));
const seen = new Set();
const watch = new IntersectionObserver(entries => {
  for (const e of entries) seen[e.isIntersecting ? "add" : "delete"](e.target.id);
  let first = true;
  for (const [id, a] of links) {
    if (seen.has(id) && first) { a.setAttribute("aria-current", "true"); first = false; }
    else a.removeAttribute("aria-current");
  }
}, { rootMargin: "-64px 0px -50% 0px" });
document.querySelectorAll("main > section").forEach(section => watch.observe(section));

// Closed tables would be missing on paper.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(d => { d.open = true; }));
})();
