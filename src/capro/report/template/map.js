// The map: one canvas, thousands of points, the picture of the nearest one at the pointer.
function imageMap() {
  const host = document.getElementById("map-figure");
  if (!host) return;
  const { items, x, y } = DATA.map;
  const cleaned = DATA.samples.after !== null;
  const used = [...new Set(items.flatMap((sample) => [...DATA.samples.given[sample], ...(cleaned ? DATA.samples.after[sample] : [])]))].sort((a, b) => a - b);
  const box = el("div", { class: "map-box" }), canvas = el("canvas", { tabindex: 0, "aria-label": "Map of the images; arrow keys go from point to point" });
  const key = el("div", { class: "legend" });
  let mode = "given", only = null, hit = -1, width = 0, height = 0;

  const classesOf = (sample) => mode === "given" ? DATA.samples.given[sample] : DATA.samples.after[sample];
  const paint = (sample) => {
    if (mode === "verdict") return color({ keep: "keep", away: "away", drop: "drop" }[verdict(sample)]);
    const list = classesOf(sample);
    return list.length ? classColor(only !== null && list.includes(only) ? only : list[0]) : color("plain");
  };
  const isOn = (sample) => only === null || (mode === "verdict" ? verdict(sample) === only : classesOf(sample).includes(only));
  const at = (i) => [12 + x[i] * (width - 24), 12 + (1 - y[i]) * (height - 24)];
  const radius = () => items.length > 1500 ? 2.8 : 4;

  function draw() {
    const ratio = Math.min(devicePixelRatio || 1, 2);
    canvas.width = width * ratio; canvas.height = height * ratio;
    canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    const dot = (i, r) => { const [cx, cy] = at(i); context.beginPath(); context.arc(cx, cy, r, 0, 7); context.fill(); };
    const faint = [], bright = [];
    items.forEach((sample, i) => (isOn(sample) ? bright : faint).push(i));
    context.globalAlpha = 0.12; context.fillStyle = color("plain");
    for (const i of faint) dot(i, radius());
    context.globalAlpha = 0.85;
    for (const i of bright) { context.fillStyle = paint(items[i]); dot(i, radius()); }
    if (hit >= 0) { context.globalAlpha = 1; context.lineWidth = 2.5; context.strokeStyle = color("ink"); const [cx, cy] = at(hit); context.beginPath(); context.arc(cx, cy, 7, 0, 7); context.stroke(); }
  }
  function keys() {
    const entries = mode === "verdict" ? ["keep", "away", "drop"].map((kind) => [kind, { keep: "label kept", away: "label changed", drop: "dropped" }[kind], color(kind)])
      : used.slice(0, 60).map((c) => [c, nameOf(c), classColor(c)]);
    key.replaceChildren(...entries.map(([value, text, hue]) => {
      const swatch = el("i", { class: "swatch" });
      swatch.style.background = hue;
      return el("button", { type: "button", "aria-pressed": String(only === value), on: { click: () => { only = only === value ? null : value; keys(); draw(); } } }, swatch, text);
    }));
    if (mode !== "verdict" && used.length > 60) key.append(el("span", null, `and ${count(used.length - 60)} more classes`));
  }
  function nearest(event) {
    const place = canvas.getBoundingClientRect(), px = event.clientX - place.left, py = event.clientY - place.top;
    let best = -1, least = 18 * 18;
    items.forEach((sample, i) => {
      const [cx, cy] = at(i), d = (cx - px) ** 2 + (cy - py) ** 2;
      if (d < least && isOn(sample)) { least = d; best = i; }
    });
    return best;
  }
  function point(i, event) {
    const changed = i !== hit;
    hit = i;
    if (changed) draw();
    if (i < 0) { hideTip(); return; }
    const sample = items[i];
    const children = changed || tip.hidden ? [picture(sample), line(move(sample), true), line(clip(DATA.samples.title[sample] || DATA.samples.text[sample] || "no text", 90))] : [...tip.childNodes];
    showTip(event, ...children);
  }
  canvas.addEventListener("pointermove", (event) => point(nearest(event), event));
  canvas.addEventListener("pointerdown", (event) => point(nearest(event), event));
  canvas.addEventListener("pointerleave", () => { hit = -1; draw(); hideTip(); });
  canvas.addEventListener("click", (event) => { const i = nearest(event); if (i >= 0 && event.detail > 1) openDetail(items[i]); });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Enter" && hit >= 0) openDetail(items[hit]);
    if (!step) return;
    event.preventDefault();
    const place = canvas.getBoundingClientRect(), next = (hit + step + items.length) % items.length, [cx, cy] = at(next);
    point(next, { clientX: place.left + cx, clientY: place.top + cy });
  });
  const modes = [["given", "given label"], ...(cleaned ? [["after", "corrected label"], ["verdict", "verdict"]] : [])];
  box.append(canvas);
  host.append(chips(modes, mode, (chosen) => { mode = chosen; only = null; hit = -1; keys(); draw(); }), box, key);
  keys();
  figure(box, (wide) => { width = wide; height = Math.round(Math.min(620, Math.max(340, wide * 0.6))); keys(); draw(); });
}
