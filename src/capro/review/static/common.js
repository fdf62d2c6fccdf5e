// What every page has: requests in order, news of other browsers, dialogs, Apply, the theme.

const meta = (name) => document.querySelector(`meta[name="capro-${name}"]`)?.content ?? "";
export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
export const several = meta("several") === "1";
let last = Number(meta("last"));
let version = Number(meta("version"));
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

// --- writing: one after the other, tried again until the server has answered ------------------------

const waiting = [];
let sending = false;

async function post(path, body) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json", "x-capro-key": key },
    body: JSON.stringify({ ...body, who: who() }),
  });
  if (answer.status === 401 || answer.status === 403) {
    // the server was started anew: with its link opened in another tab this page goes on
    const again = await fetch("/key");
    if (again.ok) ({ key } = await again.json());
    throw new Error(await answer.text());
  }
  const found = await answer.json();
  if (!answer.ok) return { error: [found.error, found.hint].filter(Boolean).join(": ") };
  return found;
}

async function work() {
  if (sending) return;
  sending = true;
  while (waiting.length) {
    const { path, body, done } = waiting[0];
    let found;
    try {
      found = await post(path, body);
    } catch (error) {
      const text = error instanceof TypeError ? "the server does not answer" : error.message;
      toast(`${waiting.length} not saved yet: ${text}`, true);
      await new Promise((resolve) => { setTimeout(resolve, 1500); });
      continue;
    }
    waiting.shift();
    if ($("#toast").classList.contains("bad")) toast("Saved.");
    if (found.error) toast(found.error, true);
    else took(found);
    done(found);
  }
  sending = false;
}

export function send(path, body = {}) {
  return new Promise((done) => {
    // named once: the server may have it already when it is sent again
    const sent = `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
    waiting.push({ path, body: { ...body, sent }, done });
    work();
  });
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

function took(found) {
  for (const state of found.rows ?? []) show(state);
  if (found.decided !== undefined) $("#decided").textContent = found.decided.toLocaleString("en");
  if (found.text) toast(found.text);
  document.dispatchEvent(new CustomEvent("took"));
}

let applied = false;
async function poll() {
  if (document.hidden || sending) return;
  let found;
  try {
    const answer = await fetch(`/changes?since=${last}`);
    if (answer.status === 401) return news("The server was started anew: open the link that the terminal shows.");
    found = await answer.json();
  } catch {
    return news("The server does not answer. Decisions wait here until it does.");
  }
  last = found.last;
  for (const state of found.rows) show(state);
  if (found.rows.length) document.dispatchEvent(new CustomEvent("took"));
  const { running, line, error } = found.apply;
  applied ||= running;
  $("#apply").disabled = running;
  if (running) news(`Applying: ${line}`);
  else if (error && applied) news(`Apply failed: ${error}`);
  else if (found.version !== version) news("Applied: the queue is new.", "Show it");
  else news("");
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
  let found = [], at = 0, answer = () => {};
  const choose = (name) => { answer(name); dialog.close(); };
  const draw = () => {
    const asked = input.value.trim().toLowerCase();
    const rank = (name) => { const place = name.toLowerCase().indexOf(asked); return place < 0 ? Infinity : place; };
    found = names.filter((name) => rank(name) < Infinity).sort((a, b) => rank(a) - rank(b)).slice(0, 12);
    at = Math.min(at, Math.max(0, found.length - 1));
    list.replaceChildren(...found.map((name, number) => {
      const item = document.createElement("li");
      item.textContent = name;
      item.id = `label-${number}`;
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", String(number === at));
      item.onclick = () => choose(name);
      return item;
    }));
    if (!found.length) list.textContent = "no class of this name";
    input.setAttribute("aria-activedescendant", found.length ? `label-${at}` : "");
  };
  input.value = "";
  input.oninput = () => { at = 0; draw(); };
  input.onkeydown = (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      at = (at + (event.key === "ArrowDown" ? 1 : found.length - 1)) % Math.max(1, found.length);
      draw();
    } else if (event.key === "Enter") {
      if (found.length) choose(found[at]);
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
  const yes = await confirmed("Apply your decisions?", "The stages that depend on them are done again: with a frozen encoder that takes seconds. You can go on deciding meanwhile.");
  if (!yes) return;
  applied = true;
  await send("/apply");
  poll();
};
$("#theme").onclick = () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("capro-theme", root.dataset.theme);
};
export const help = () => $("#help").showModal();

// a picture that cannot be read leaves its box, with a word in it
addEventListener("error", (event) => {
  if (event.target instanceof HTMLImageElement) event.target.closest(".picture, .stage")?.classList.add("gone");
}, true);
document.documentElement.dataset.ready = "1";
