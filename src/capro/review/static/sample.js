// One sample at a time. The next ones are fetched ahead: a key shows the next picture at once.
import { $, outdated, pictures, toast, version } from "./common.js";
import { actions } from "./actions.js";

const ready = new Map(); // row -> the promise of its sheet
const seen = []; // rows before this one, for going back

const sheet = () => $("#sheet > .sheet");
const row = () => Number(sheet().dataset.row);
const address = (number) => `/sample/${number}${location.search}`;

function fetched(number) {
  if (!ready.has(number)) {
    const query = new URLSearchParams(location.search);
    query.set("part", "1");
    const text = fetch(`/sample/${number}?${query}`).then((answer) => {
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      return answer.text();
    });
    text.catch(() => ready.delete(number));
    ready.set(number, text);
    new Image().src = `${pictures}/large/${number}`;
  }
  return ready.get(number);
}

const queue = () => (sheet().dataset.next || "").split(",").filter(Boolean).map(Number);
function ahead() {
  queue().slice(0, 3).forEach(fetched);
  $("#scope").textContent = sheet().dataset.members.includes(",") ? `decides ${sheet().dataset.members.split(",").length}` : "";
  clearTimeout(looking);
  looking = setTimeout(likes, 350); // not while somebody goes through quickly
}

let looking;
async function likes() {
  const box = $(".likes", sheet());
  if (!box.dataset.likes) return;
  const answer = await fetch(box.dataset.likes).catch(() => null);
  if (!answer?.ok) { box.textContent = "Similar pictures could not be found."; return; }
  // our own server's page, escaped there; scripts in it would not run
  box.innerHTML = await answer.text();
}

async function showRow(number, push = true) {
  let text;
  try {
    text = await fetched(number);
  } catch (error) {
    toast(`The next sample cannot be shown: ${error.message}`, true);
    return;
  }
  ready.delete(number);
  $("#sheet").innerHTML = text;
  if (push) history.pushState({ row: number }, "", address(number));
  if (sheet().dataset.version !== version) outdated();
  scrollTo(0, 0);
  ahead();
}

function next() {
  const [number] = queue();
  if (number === undefined) { toast("This was the last one of this view."); return; }
  seen.push(row());
  showRow(number);
}
function back() { if (seen.length) showRow(seen.pop()); }

const grid = () => { location.href = `/${location.search}`; };
actions({
  chosen: () => [sheet()],
  scope: () => "This sample",
  decided: next,
  undone: (rows) => { if (rows.length && !rows.some((state) => state.row === row())) showRow(rows[0].row); },
  doing: { next, back },
  keys: {
    ArrowRight: next,
    ArrowLeft: back,
    n: next,
    g: grid,
    Escape: grid,
    m: () => { location.href = $("#more-like").href; },
    c: () => { location.href = $("#next-class").href; },
  },
});
addEventListener("popstate", () => {
  const match = location.pathname.match(/\/sample\/(\d+)/);
  if (match) showRow(Number(match[1]), false);
});
ahead();
