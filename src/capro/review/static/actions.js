// Keys and buttons become decisions; a page says for which tiles, and what happens next.
import { $, $$, busy, chosenLabel, confirmed, help, send, several, view } from "./common.js";

const WORDS = { accept: "Accept", label: "Relabel", out: "Drop", unsure: "Not sure", anchor: "Make anchors of", add: "Add a label to", remove: "Remove a label of", best: "Keep the best of" };
const KEYS = { a: "accept", r: "label", d: "out", s: "unsure", p: "anchor", "+": "add", "=": "add", "-": "remove", "\u2212": "remove" };

const pictures = (count) => `${count.toLocaleString("en")} ${count === 1 ? "picture" : "pictures"}`;
export const members = (tile) => tile.dataset.members.split(",").map(Number);

export function actions(page) {
  async function decide(verb, tiles = page.chosen()) {
    if (!tiles.length || ((verb === "add" || verb === "remove") && !several)) return;
    let label = null;
    if (verb === "label" || verb === "add" || verb === "remove") {
      const titles = { label: "Which label is right?", add: "Add which label?", remove: "Remove which label?" };
      label = await chosenLabel(titles[verb]);
      if (label === null) return;
    }
    const rows = [...new Set(tiles.flatMap(members))];
    if (tiles.length > 1) {
      const what = label ? `${WORDS[verb]}: ${label}` : WORDS[verb];
      const tail = rows.length > tiles.length ? `, with their near duplicates ${pictures(rows.length)}` : "";
      if (!(await confirmed(`${what}: ${pictures(tiles.length)}?`, `${page.scope(tiles)}${tail}. Nothing else is changed; Z takes it back.`))) return;
    }
    for (const tile of tiles) tile.dataset.kind = "saving";
    const saved = send("/decide", { rows, verb, label, view: view(), reason: tiles[0].dataset.reason });
    page.decided(tiles);
    await saved; // refused, or not decided: as the best of copies
    for (const tile of tiles) if (tile.dataset.kind === "saving") tile.dataset.kind = "";
  }
  const turn = async (path) => { const found = await send(path); page.turned?.(found.rows ?? []); };
  const doing = { undo: () => turn("/undo"), redo: () => turn("/redo"), help, ...page.doing };

  for (const button of $$("[data-verb]")) button.onclick = () => decide(button.dataset.verb);
  for (const button of $$("[data-do]")) button.onclick = () => doing[button.dataset.do]?.();

  addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, select, textarea");
    if (busy() || typing || event.altKey) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const turning = event.ctrlKey || event.metaKey;
    let act;
    if (key === "z") act = event.shiftKey ? doing.redo : doing.undo;
    else if (key === "y") act = doing.redo;
    else if (turning) return;
    else if (key === "?") act = help;
    else if (key === "/" && $("input[type=search]")) act = () => $("input[type=search]").focus();
    else if (KEYS[key]) act = () => decide(KEYS[key]);
    else act = page.keys[key] && (() => page.keys[key](event));
    if (!act) return;
    event.preventDefault();
    act();
  });
  return { decide };
}
