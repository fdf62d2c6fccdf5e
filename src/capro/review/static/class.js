// A class: its meaning can be changed.
import { $, busy, send } from "./common.js";

const form = $("#meaning");
form.onsubmit = async (event) => {
  event.preventDefault();
  const found = await send(`/class/${form.dataset.number}/meaning`, Object.fromEntries(new FormData(form)));
  $("#meaning-said").textContent = found.error || found.text;
};
addEventListener("keydown", (event) => {
  if (event.key === "c" && !busy() && !event.target.closest("input")) location.href = $("#next-class").href;
});
