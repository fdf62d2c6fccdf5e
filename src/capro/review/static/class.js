// A class: its meaning can be changed.
import { $, busy, send } from "./common.js";

const form = $("#meaning");
const kept = `capro-meaning:${$("h1").textContent}`; // what was typed outlives a reload for a new queue
const typed = JSON.parse(sessionStorage.getItem(kept) ?? "null");
for (const [name, text] of Object.entries(typed ?? {})) form.elements[name].value = text;
if (typed) $("#meaning-said").textContent = "Not saved yet.";
form.onsubmit = async (event) => {
  event.preventDefault();
  const meaning = Object.fromEntries(new FormData(form));
  sessionStorage.setItem(kept, JSON.stringify(meaning));
  const result = await send(`/class/${form.dataset.number}/meaning`, meaning);
  if (result.text) sessionStorage.removeItem(kept);
  $("#meaning-said").textContent = result.error || result.text || "";
};
addEventListener("keydown", (event) => {
  if (event.key === "c" && !busy() && !event.target.closest("input")) location.href = $("#next-class").href;
});
