"use strict";
// Everything is built with text nodes: no string from the data is ever parsed as markup.
const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const KIND = { anchor: "anchor", keep: "kept", away: DATA.task === "multi" ? "removed" : "relabelled to another class",
  arrived: DATA.task === "multi" ? "added" : "relabelled to this class", drop: "dropped" };

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  return fill(made, attributes, children);
}
function svg(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  return fill(made, attributes, children);
}
function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "on") for (const [event, call] of Object.entries(value)) made.addEventListener(event, call);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const count = (number) => number.toLocaleString("en");
const percent = (share, digits = 0) => share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)}\u00a0%`;
const nameOf = (c) => c < 0 ? "other classes" : DATA.classes[c];
const labels = (list) => list.length ? list.map(nameOf).join(", ") : "no label";
const clip = (text, length) => text.length > length ? `${text.slice(0, Math.max(1, length - 1))}…` : text;
const classColor = (c) => `hsl(${(c * 137.508 + 215) % 360} ${c % 2 ? 58 : 70}% ${[48, 60, 54][c % 3]}%)`;

// --- figures: drawn when they come near, again when the width or the theme changes ---
const drawn = new Map();
const near = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) { near.unobserve(entry.target); redraw(entry.target, true); sized.observe(entry.target); }
}, { rootMargin: "600px" });
const sized = new ResizeObserver((entries) => { for (const entry of entries) redraw(entry.target, false); });
function figure(host, draw) {
  if (!host) return;
  drawn.set(host, { draw, width: 0 });
  near.observe(host);
}
function redraw(host, force) {
  const state = drawn.get(host);
  const width = Math.floor(host.clientWidth);
  if (!state || !width || (!force && width === state.width)) return;
  state.width = width;
  state.draw(width);
}
// After the first screen the rest is drawn in idle time: links to sections then land where they should.
function drawRest() {
  const idle = window.requestIdleCallback || ((call) => setTimeout(call, 30));
  const waiting = [...drawn.keys()].filter((host) => !drawn.get(host).width);
  if (!waiting.length) { document.documentElement.dataset.drawn = "1"; return; }
  idle(() => { near.unobserve(waiting[0]); redraw(waiting[0], true); drawn.get(waiting[0]).width ||= -1; sized.observe(waiting[0]); drawRest(); });
}
function redrawAll() { for (const host of drawn.keys()) redraw(host, true); }

// --- pictures: a sheet is decoded when a picture on it is first needed ---
const sheets = new Map();
function sheet(number) {
  if (!sheets.has(number)) {
    const image = new Image();
    image.src = document.getElementById(`sheet-${number}`).textContent;
    sheets.set(number, image.decode().then(() => image, () => null));
  }
  return sheets.get(number);
}
function picture(sample, side) {
  const place = DATA.samples.place[sample];
  const canvas = el("canvas", { class: "picture", role: "img", "aria-label": place ? DATA.samples.title[sample] || "image without a title" : "picture could not be read" });
  const tile = place ? DATA.samples.tiles[place[0]] : 8;
  canvas.width = canvas.height = side || tile;
  if (place) sheet(place[0]).then((image) => {
    if (!image) return;
    const across = Math.floor(image.width / tile);
    // one pixel in: compression lets neighbours bleed over the edge
    canvas.getContext("2d").drawImage(image, (place[1] % across) * tile + 1, Math.floor(place[1] / across) * tile + 1, tile - 2, tile - 2, 0, 0, canvas.width, canvas.height);
    canvas.dataset.ready = "1";
  });
  return canvas;
}

// --- the tip that follows the pointer, and the dialog with everything about an image ---
const tip = document.getElementById("tip");
function showTip(event, ...children) {
  tip.replaceChildren(...children);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const x = event.clientX + 16 + box.width > innerWidth ? event.clientX - box.width - 16 : event.clientX + 16;
  const y = event.clientY + 16 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 16;
  tip.style.left = `${Math.max(6, x)}px`;
  tip.style.top = `${Math.max(6, y)}px`;
}
const hideTip = () => { tip.hidden = true; };
const tipped = (make) => ({ pointerenter: (event) => showTip(event, ...make()), pointermove: (event) => showTip(event, ...make()), pointerleave: hideTip });
const line = (text, strong) => el("p", null, strong ? el("b", null, text) : text);
addEventListener("scroll", hideTip, { passive: true });

function verdict(sample) {
  if (!DATA.samples.after) return null;
  const given = DATA.samples.given[sample], after = DATA.samples.after[sample];
  if (!after.length) return "drop";
  return given.length === after.length && given.every((c) => after.includes(c)) ? "keep" : "away";
}
function move(sample) {
  const given = labels(DATA.samples.given[sample]);
  if (!DATA.samples.after) return given;
  const kind = verdict(sample);
  return kind === "keep" ? given : `${given} → ${kind === "drop" ? "dropped" : labels(DATA.samples.after[sample])}`;
}
function openDetail(sample, evidence, score) {
  const dialog = document.getElementById("detail");
  const facts = el("dl", null);
  const fact = (name, value) => value && facts.append(el("dt", null, name), el("dd", { dir: "auto" }, value));
  fact("label", move(sample));
  fact("evidence", evidence);
  fact("fused score", score === undefined || score === null ? "" : score.toFixed(2));
  fact("title", DATA.samples.title[sample]);
  fact("description and tags", DATA.samples.text[sample]);
  if (!DATA.samples.title[sample] && !DATA.samples.text[sample]) fact("text", "This image came without any text.");
  fact("id", DATA.samples.id[sample]);
  dialog.replaceChildren(
    el("button", { class: "close", type: "button", on: { click: () => dialog.close() } }, "Close"),
    el("div", { class: "sheet" }, picture(sample), facts));
  hideTip();
  dialog.showModal();
}
document.getElementById("detail").addEventListener("click", (event) => { if (event.target === event.currentTarget) event.currentTarget.close(); });

function chips(options, chosen, choose) {
  const box = el("div", { class: "chips" });
  for (const [value, text, note, off] of options) {
    box.append(el("button", { type: "button", class: "chip", "data-value": value, "aria-pressed": String(value === chosen), disabled: !!off,
      on: { click: (event) => {
        for (const other of box.children) other.setAttribute("aria-pressed", String(other === event.currentTarget));
        choose(value);
      } } }, text, note === undefined ? null : el("small", null, note)));
  }
  return box;
}
function legend(entries) {
  return el("div", { class: "legend" }, ...entries.map(([text, paint]) => {
    const swatch = el("i", { class: "swatch" });
    swatch.style.background = paint;
    return el("span", null, swatch, text);
  }));
}
