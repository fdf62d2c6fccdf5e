// What every page has: requests in order, news of other browsers, dialogs, Apply, the theme.

const meta = (name) => document.querySelector(`meta[name="capro-${name}"]`)?.content ?? "";
export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
let last = Number(meta("last"));
export const version = meta("version"); // of the verdicts that this page shows
export const pictures = meta("pictures");
let key = meta("key");

export const who = () => localStorage.getItem("capro-who") || "";
export const view = () => Object.fromEntries(new URLSearchParams(location.search));

// --- messages -------------------------------------------------------------------------------------

let hiding;
export function toast(text, bad = false) {
  const box = $("#toast");
  box.textContent = text;
  box.className = bad ? "bad shown" : "shown";
  clearTimeout(hiding);
  if (!bad) hiding = setTimeout(() => { box.className = ""; }, 4000);
}

function news(text, link) {
  const box = $("#news");
  box.hidden = !text;
  box.textContent = text;
  if (link) {
    const a = document.createElement("a");
    a.href = location.href;
    a.textContent = link;
    box.append(" ", a);
  }
}

// --- writing: one after the other, tried again until the server has taken or refused it --------------

const TRIES = 5; // of a write that the server answers, but neither takes nor explains
const waiting = [];
let sending = false, renewing = false, old = false;

const pause = () => new Promise((resolve) => { setTimeout(resolve, 1500); });
const notYet = (text) => toast(`${waiting.length} not saved yet: ${text}`, true);

async function refused(answer) {
  const text = await answer.text();
  try {
    const { error, hint } = JSON.parse(text);
    return [error, hint].filter(Boolean).join(": ");
  } catch {
    return text.length < 200 ? text : `the server answered ${answer.status}`;
  }
}

async function post(path, body) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json", "x-capro-key": key },
    body: JSON.stringify({ ...body, version, who: who() }),
  });
  if (answer.ok) return answer.json();
  if (answer.status === 409) return { stale: true };
  const text = await refused(answer);
  if (answer.status === 401 || answer.status === 403) {
    // the server was started anew: this page goes on once its link has been opened in another tab
    let again;
    while (!(again = await fetch("/key")).ok) {
      notYet(text);
      await pause();
    }
    ({ key } = await again.json());
    throw new Error(text);
  }
  if (answer.status >= 500) throw new Error(text);
  return { error: `Not saved: ${text}` };
}

async function work() {
  if (sending) return;
  sending = true;
  while (waiting.length) {
    const each = waiting[0];
    let result;
    try {
      result = await post(each.path, each.body);
    } catch (error) {
      const silent = error instanceof TypeError; // no answer: the server may come back
      each.tries += silent ? 0 : 1;
      if (each.tries < TRIES) {
        notYet(silent ? "the server does not answer" : error.message);
        await pause();
        continue;
      }
      result = { error: `Not saved: ${error.message}` };
    }
    if (result.stale) { renew(); return; }
    waiting.shift();
    if (result.error) toast(result.error, true);
    else if ($("#toast").classList.contains("bad")) toast("Saved.");
    if (!result.error) showResult(result);
    each.done(result);
  }
  sending = false;
  if (old) renew();
}

export function send(path, body = {}) {
  return new Promise((done) => {
    // named once: the server may have it already when it is sent again
    const sent = `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
    waiting.push({ path, body: { ...body, sent }, done, tries: 0 });
    if (renewing) notDone(); else work();
  });
}

// the queue is new: what was answered to the old one is not done, and is said when the page is there again
function notDone() {
  const before = Number(sessionStorage.getItem("capro-not-done"));
  sessionStorage.setItem("capro-not-done", before + waiting.length);
  for (const each of waiting.splice(0)) each.done({});
}

function renew() {
  renewing = true;
  const row = location.pathname.startsWith("/sample/") ? waiting[0]?.body.rows?.[0] : undefined;
  notDone();
  if (row === undefined) location.reload();
  else location.replace(`/sample/${row}${location.search}`); // the one that was not saved, not the next
}

// this page is of another queue: read it again, after what is on its way has been answered
export function outdated() {
  old = true;
  if (!sending) renew();
}

export async function read(path) {
  try {
    const answer = await fetch(path);
    if (answer.ok) return await answer.json();
    toast(await refused(answer), true);
  } catch {
    toast("The server does not answer.", true);
  }
  return null;
}
addEventListener("beforeunload", (event) => { if (waiting.length) event.preventDefault(); });

// --- states of samples ------------------------------------------------------------------------------

export function show(state) {
  for (const tile of $$(`[data-row="${state.row}"]`)) {
    tile.dataset.kind = state.kind;
    const answer = $(".answer", tile);
    if (answer) answer.textContent = state.word;
  }
}

function showResult(result) {
  for (const state of result.rows ?? []) show(state);
  if (result.decided !== undefined) $("#decided").textContent = result.decided.toLocaleString("en");
  if (result.text) toast(result.text);
  document.dispatchEvent(new CustomEvent("changed"));
}

let applied = false;
async function poll() {
  if (document.hidden || sending || renewing) return;
  let changes;
  try {
    const answer = await fetch(`/changes?since=${last}`);
    if (answer.status === 401) return news("The server was restarted: open the link that the terminal shows.");
    if (!answer.ok) return news(await refused(answer));
    changes = await answer.json();
  } catch {
    return news("The server does not answer. Your decisions are kept on this page until it does.");
  }
  const same = changes.version === version; // otherwise its rows may be other samples
  last = changes.last;
  if (same) for (const state of changes.rows) show(state);
  if (same && changes.rows.length) document.dispatchEvent(new CustomEvent("changed"));
  const { running, line, error } = changes.apply;
  applied ||= running;
  $("#apply").disabled = running;
  if (running) news(`Applying: ${line}`);
  else if (error && applied) news(`Apply failed: ${error}`);
  else if (!same) news(applied ? "Applied: the queue is new." : "The queue is new.", "Show it");
  else {
    news("");
    if (applied) toast("Applied: nothing is new.");
    applied = false;
  }
}
setInterval(poll, 1500);

// --- dialogs ----------------------------------------------------------------------------------------

for (const dialog of $$("dialog")) {
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-close]")) dialog.close();
  });
}
// a browser tells of the closing a moment later: by then the dialog may ask the next question
const closed = (dialog, done) => { dialog.onclose = () => { if (!dialog.open) done(); }; };
export const busy = () => $$("dialog").some((dialog) => dialog.open);

export function confirmed(title, text) {
  const dialog = $("#sure");
  $("#sure-title").textContent = title;
  $("#sure-text").textContent = text;
  dialog.showModal();
  $("#sure-yes").focus();
  return new Promise((done) => {
    // answered at once: the close event comes later, and the next key may come before it
    $("#sure-yes").onclick = () => { done(true); dialog.close(); };
    closed(dialog, () => done(false));
  });
}

const names = $$("#classes option").map((option) => option.value);
export function chosenLabel(title) {
  const dialog = $("#labels"), input = $("#labels-input"), list = $("#labels-list");
  let matches = [], at = 0, answer = () => {};
  const choose = (name) => { answer(name); dialog.close(); };
  const draw = () => {
    const asked = input.value.trim().toLowerCase();
    const rank = (name) => { // the name itself first, then names that begin so
      const place = name.toLowerCase().indexOf(asked);
      return place < 0 ? Infinity : name.length === asked.length ? -1 : place;
    };
    matches = names.filter((name) => rank(name) < Infinity).sort((a, b) => rank(a) - rank(b)).slice(0, 12);
    at = Math.min(at, Math.max(0, matches.length - 1));
    list.replaceChildren(...matches.map((name, number) => {
      const item = document.createElement("li");
      item.textContent = name;
      item.id = `label-${number}`;
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", String(number === at));
      item.onclick = () => choose(name);
      return item;
    }));
    if (!matches.length) list.textContent = "no class of this name";
    input.setAttribute("aria-activedescendant", matches.length ? `label-${at}` : "");
  };
  input.value = "";
  input.oninput = () => { at = 0; draw(); };
  input.onkeydown = (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      at = (at + (event.key === "ArrowDown" ? 1 : matches.length - 1)) % Math.max(1, matches.length);
      draw();
    } else if (event.key === "Enter") {
      if (matches.length) choose(matches[at]);
    } else return;
    event.preventDefault();
  };
  $("#labels-title").textContent = title;
  draw();
  dialog.showModal();
  input.focus();
  return new Promise((done) => { answer = done; closed(dialog, () => done(null)); });
}

$("#who").value = who();
$("#who").onchange = (event) => localStorage.setItem("capro-who", event.target.value.trim());
$("#another").onclick = async () => {
  const { link } = await send("/link");
  $("#another-link").hidden = false;
  $("#another-link").textContent = `${link} (works once)`;
};
$("#apply").onclick = async () => {
  const yes = await confirmed("Apply your decisions?", "The stages that depend on them are done again: with a frozen encoder that takes less than a minute for some thousand samples. You can continue to decide in the meantime.");
  if (!yes) return;
  const { started } = await send("/apply");
  applied ||= started !== undefined; // false: it works already
  poll();
};
$("#theme").onclick = () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("capro-theme", root.dataset.theme);
};
export const help = () => $("#help").showModal();

const lost = Number(sessionStorage.getItem("capro-not-done"));
sessionStorage.removeItem("capro-not-done");
if (lost) { // as a dialog: the next key is no answer to a picture that nobody has looked at
  const what = lost === 1 ? "Your last action was" : `Your last ${lost} actions were`;
  $("#told-text").textContent = `${what} not saved: the page still showed older verdicts. Look again; everything before is saved.`;
  $("#told").showModal();
}

// a picture that cannot be read leaves its box, with a word in it
addEventListener("error", (event) => {
  if (event.target instanceof HTMLImageElement) event.target.closest(".picture, .stage")?.classList.add("gone");
}, true);
document.documentElement.dataset.ready = "1";
