// The grid: a cursor, a selection, pages.
import { $, $$ } from "./common.js";
import { actions, members } from "./actions.js";

const tiles = $$("#grid .tile");
const selected = new Set();
let at = 0, start = 0;

const across = () => {
  const first = tiles[0]?.offsetTop;
  return Math.max(1, tiles.filter((tile) => tile.offsetTop === first).length);
};

function scope() {
  const chosen = page.chosen();
  const rows = new Set(chosen.flatMap(members)).size;
  $("#scope").textContent = selected.size ? `${selected.size} selected${rows > selected.size ? `, decides ${rows}` : ""}` : rows > 1 ? `decides ${rows}` : "";
}

function mark() {
  tiles.forEach((tile, number) => {
    tile.tabIndex = number === at ? 0 : -1;
    tile.classList.toggle("selected", selected.has(tile));
    $(".pick", tile).setAttribute("aria-pressed", String(selected.has(tile)));
  });
  scope();
}

function go(to, event, focus = true) {
  if (!tiles.length) return;
  to = Math.max(0, Math.min(tiles.length - 1, to));
  if (event?.shiftKey) {
    selected.clear();
    tiles.slice(Math.min(start, to), Math.max(start, to) + 1).forEach((tile) => selected.add(tile));
  } else start = to;
  at = to;
  mark();
  if (focus) tiles[at].focus({ preventScroll: false });
}

const toggle = (tile) => { if (!selected.delete(tile)) selected.add(tile); mark(); };
const all = () => {
  const whole = selected.size === tiles.length;
  selected.clear();
  if (!whole) tiles.forEach((tile) => selected.add(tile));
  mark();
};
const open = () => { location.href = $(".picture", tiles[at]).href; };
const follow = (selector) => { const link = $(selector); if (link) location.href = link.href; };
const like = () => { if (tiles.length) location.href = `/?like=${tiles[at].dataset.row}&state=all`; };

function nextOpen(from) {
  const rest = [...tiles.keys()].filter((number) => number > from && !tiles[number].dataset.kind);
  return rest[0] ?? Math.min(from + 1, tiles.length - 1);
}

const page = {
  chosen: () => (selected.size ? [...selected] : tiles.slice(at, at + 1)),
  scope: (chosen) => (chosen.length === tiles.length ? "The whole page, no other page" : `Selected on this page of ${tiles.length}`),
  decided: (chosen) => {
    const last = Math.max(...chosen.map((tile) => tiles.indexOf(tile)));
    selected.clear();
    go(nextOpen(last), null);
    if (tiles.every((tile) => tile.dataset.kind)) $("#next")?.focus();
  },
  doing: { page: all, like },
  keys: {
    ArrowRight: (event) => go(at + 1, event),
    ArrowLeft: (event) => go(at - 1, event),
    ArrowDown: (event) => go(at + across(), event),
    ArrowUp: (event) => go(at - across(), event),
    Home: (event) => go(0, event),
    End: (event) => go(tiles.length - 1, event),
    " ": () => tiles.length && toggle(tiles[at]),
    Escape: () => { selected.clear(); mark(); },
    Enter: (event) => { const link = document.activeElement?.closest?.("a, button"); if (link) link.click(); else open(); },
    e: all,
    n: () => follow("#next"),
    m: like,
    b: () => tiles.length && best(tiles[at]),
    c: () => follow("#next-class"),
  },
};
const { keepBest } = actions(page);
const best = (place) => { const bundle = place.closest(".bundle"); if (bundle) keepBest($$(".tile", bundle)); };

tiles.forEach((tile, number) => {
  tile.addEventListener("focus", () => { if (at !== number) { at = number; if (!selected.size) start = number; mark(); } });
  tile.addEventListener("click", (event) => {
    if (event.target.closest(".pick")) { at = number; toggle(tile); }
    else if (event.shiftKey) { event.preventDefault(); go(number, event); }
    else if (!event.target.closest("a")) go(number, null);
  });
});
for (const button of $$("[data-best]")) button.onclick = () => best(button);
for (const field of $$(".filters select")) field.onchange = () => field.form.requestSubmit();
$(".filters").addEventListener("submit", (event) => {
  for (const field of event.target.elements) if (!field.value) field.disabled = true; // short addresses
});
addEventListener("pageshow", () => { for (const field of $(".filters").elements) field.disabled = false; });
const settled = () => new Set(tiles.filter((tile) => !["", "saving"].includes(tile.dataset.kind)).flatMap(members)).size;
const before = settled();
document.addEventListener("changed", () => {
  scope();
  const left = $("#left");
  left.textContent = (Number(left.dataset.left) + before - settled()).toLocaleString("en");
});
mark();
if (tiles.length && !location.hash) tiles[0].focus({ preventScroll: true });
