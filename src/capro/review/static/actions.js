// Keys and buttons become decisions; a page says for which tiles, and what happens next.
import { $, $$, busy, chosenLabel, confirmed, help, read, send, toast, view } from "./common.js";

const buttons = $$("[data-verb]"); // each says its verb, keys, word, and the question for a class if it needs one
const buttonOf = (key) => buttons.find((button) => button.dataset.keys.includes(key));

const pictures = (count) => `${count.toLocaleString("en")} ${count === 1 ? "picture" : "pictures"}`;
export const members = (tile) => tile.dataset.members.split(",").map(Number);

export function actions(page) {
  async function decide({ verb, word, asks }, tiles = page.chosen()) {
    if (!tiles.length) return;
    const label = asks ? await chosenLabel(asks) : null;
    if (asks && label === null) return;
    const rows = [...new Set(tiles.flatMap(members))];
    if (tiles.length > 1) {
      const what = label ? `${word}: ${label}` : word;
      const tail = rows.length > tiles.length ? `, with their near duplicates ${pictures(rows.length)}` : "";
      if (!(await confirmed(`${what}: ${pictures(tiles.length)}?`, `${page.scope(tiles)}${tail}. Nothing else is changed; Z undoes it.`))) return;
    }
    await save(tiles, { rows, verb, label });
  }

  // the whole group of near duplicates, whatever of it this page shows: the server says what it would be
  async function keepBest(tiles) {
    const group = await read(`/copies/${tiles[0].dataset.row}`);
    if (!group) return;
    if (!group.dropped.length) { toast("Nothing to do: all others are dropped already."); return; }
    const dropped = new Set(group.dropped);
    const here = tiles.filter((tile) => dropped.has(Number(tile.dataset.row)));
    const already = group.size - group.dropped.length - 1;
    const parts = [`The whole group: 1 stays, ${pictures(group.dropped.length)} dropped as near duplicates`];
    if (already) parts.push(`${already} dropped already`);
    if (dropped.size > here.length) parts.push(`${dropped.size - here.length} of them not on this page`);
    if (group.decided) parts.push(`${group.decided} decided before`);
    const yes = await confirmed(`Keep the best of ${group.size.toLocaleString("en")} near duplicates?`, `${parts.join(", ")}. Nothing else is changed; Z undoes it.`);
    if (yes) await save(here.length ? here : tiles.slice(0, 1), { rows: [Number(tiles[0].dataset.row)], verb: "best" });
  }

  async function save(tiles, body) {
    const before = tiles.map((tile) => tile.dataset.kind);
    for (const tile of tiles) tile.dataset.kind = "saving";
    const saved = send("/decide", { ...body, view: view(), reason: tiles[0].dataset.reason });
    page.decided(tiles);
    await saved;
    tiles.forEach((tile, number) => { if (tile.dataset.kind === "saving") tile.dataset.kind = before[number]; }); // refused
  }
  const undoOrRedo = async (path) => { const result = await send(path); page.undone?.(result.rows ?? []); };
  const doing = { undo: () => undoOrRedo("/undo"), redo: () => undoOrRedo("/redo"), help, ...page.doing };

  for (const button of buttons) button.onclick = () => decide(button.dataset);
  for (const button of $$("[data-do]")) button.onclick = () => doing[button.dataset.do]?.();

  addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, select, textarea");
    if (busy() || typing || event.altKey) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const withControl = event.ctrlKey || event.metaKey;
    let act;
    if (key === "z") act = event.shiftKey ? doing.redo : doing.undo;
    else if (key === "y") act = doing.redo;
    else if (withControl) return;
    else if (key === "?") act = help;
    else if (key === "/" && $("input[type=search]")) act = () => $("input[type=search]").focus();
    else if (key.length === 1 && buttonOf(key)) act = () => decide(buttonOf(key).dataset);
    else act = page.keys[key] && (() => page.keys[key](event));
    if (!act) return;
    event.preventDefault();
    act();
  });
  return { keepBest };
}
