// Noise by class, label flow, given by corrected; curves, confusion, reliability, threshold.
const PAINTS = { anchor: "anchor", keep: "keep", relabel: "away", away: "away", remove: "away", add: "arrived", arrived: "arrived", drop: "drop" };
const byId = (id) => document.getElementById(id);

function noiseBars() {
  const host = byId("noise-bars");
  if (!host) return;
  const kinds = ["anchor", "keep", "away", "drop"];
  const shown = 16;
  const row = (each) => {
    const stack = el("div", { class: "stack", role: "img", "aria-label": kinds.map((kind) => `${KIND[kind]} ${each.counts[DATA.noise.kinds.indexOf(kind)]}`).join(", ") });
    for (const kind of kinds) {
      const number = each.counts[DATA.noise.kinds.indexOf(kind)];
      if (!number) continue;
      const part = el("i", { class: kind, on: tipped(() => [line(nameOf(each.label), true), line(`${KIND[kind]}: ${count(number)} of ${count(each.given)}`)]) });
      part.style.flex = `${number} 0 0`;
      stack.append(part);
    }
    return el("div", { class: "noise-row" }, el("span", { class: "name", title: nameOf(each.label) }, nameOf(each.label)), stack, el("span", { class: "per" }, each.given ? percent(each.share) : "–"));
  };
  const list = el("div", null, ...DATA.noise.classes.slice(0, shown).map(row));
  host.append(legend(kinds.map((kind) => [KIND[kind], `var(--${kind})`])), list);
  if (DATA.noise.classes.length > shown) {
    host.append(el("button", { type: "button", class: "more", on: { click: (event) => { list.append(...DATA.noise.classes.slice(shown).map(row)); event.currentTarget.remove(); } } }, `Show all ${count(DATA.noise.classes.length)} classes`));
  }
}

function flowFigure() {
  const host = byId("flow-figure");
  if (!host) return;
  const names = [...DATA.flow.classes.map(nameOf), DATA.task === "multi" ? "no label" : "dropped"];
  const none = names.length - 1;
  figure(host, (width) => {
    const narrow = width < 560;
    const margin = narrow ? 86 : 132, gap = narrow ? 5 : 7;
    const sum = (at) => names.map((_, n) => DATA.flow.links.reduce((total, each) => total + (each[at] === n ? each[2] : 0), 0));
    const out = sum(0), into = sum(1);
    const total = Math.max(out.reduce((a, b) => a + b, 0), 1);
    const scale = (Math.max(380, names.length * 30) - gap * names.length - 8) / total;
    const starts = (sizes) => { let at = 4; return sizes.map((size) => { const here = at; at += size ? Math.max(14, size * scale + gap) : 0; return here; }); }; // 14 px: names never overlap
    const left = starts(out), right = starts(into);
    const ends = (at, sizes) => Math.max(...at.map((y, n) => y + sizes[n] * scale));
    const height = Math.ceil(Math.max(ends(left, out), ends(right, into))) + 16;
    const used = [left.slice(), right.slice()];
    const paint = (s, t) => t === none ? color("drop") : s === none ? color("arrived") : s === t ? color("keep") : color("away");
    const root = svg("svg", { width, height, role: "img", "aria-label": "Label flow from given to corrected" });
    const bands = svg("g", null);
    const focus = (test) => { for (const band of bands.children) band.setAttribute("fill-opacity", test(+band.dataset.s, +band.dataset.t) ? 0.85 : 0.08); };
    const rest = () => { for (const band of bands.children) band.setAttribute("fill-opacity", band.dataset.rest); hideTip(); };
    const strength = (s, t, number) => s === t ? 0.5 : Math.min(0.85, 0.22 + 4 * number / (out[s] || 1)); // a few strays stay faint
    const x0 = margin + 9, x1 = width - margin - 9, mid = (x0 + x1) / 2;
    for (const [s, t, number] of DATA.flow.links) {
      const thick = Math.max(0.6, number * scale), a = used[0][s], b = used[1][t];
      used[0][s] += number * scale; used[1][t] += number * scale;
      const band = svg("path", { d: `M${x0} ${a}C${mid} ${a} ${mid} ${b} ${x1} ${b}L${x1} ${b + thick}C${mid} ${b + thick} ${mid} ${a + thick} ${x0} ${a + thick}Z`, fill: paint(s, t), "data-s": s, "data-t": t, "data-rest": strength(s, t, number).toFixed(2) });
      const show = (event) => { focus((p, q) => p === s && q === t); showTip(event, line(s === t ? `${names[s]} stays` : `${names[s]} → ${names[t]}`, true), line(`${count(number)} ${DATA.task === "multi" ? "labels" : "images"}, ${percent(number / (out[s] || 1))} of ${names[s]}`)); };
      fill(band, { on: { pointerenter: show, pointermove: show, pointerleave: rest } }, []);
      bands.append(band);
    }
    root.append(bands);
    const node = (n, y, size, side) => {
      if (!size) return;
      const tall = Math.max(1.5, size * scale);
      const show = (event) => { focus((p, q) => (side ? q : p) === n); showTip(event, line(names[n], true), line(n < none ? `given ${count(out[n])}, after cleaning ${count(into[n])}` : count(size))); };
      root.append(svg("g", { on: { pointerenter: show, pointermove: show, pointerleave: rest } },
        svg("rect", { x: side ? x1 : margin, y, width: 9, height: tall, rx: 2, fill: n === none ? (side ? color("drop") : color("arrived")) : color("anchor") }),
        svg("text", { x: side ? x1 + 15 : margin - 6, y: y + tall / 2 + 4, "text-anchor": side ? "start" : "end" }, clip(names[n], narrow ? 11 : 17))));
    };
    names.forEach((_, n) => { node(n, left[n], out[n], false); node(n, right[n], into[n], true); });
    rest();
    const keys = [["stays", "keep"], ...(DATA.task === "multi" ? [["removed or dropped", "drop"], ["added", "arrived"]] : [["moves to another class", "away"], ["dropped", "drop"]])];
    host.replaceChildren(legend(keys.map(([text, name]) => [text, color(name)])), root);
  });
}

function matrixFigure() {
  const host = byId("matrix-figure");
  if (!host) return;
  const rows = DATA.matrix.classes.map(nameOf), columns = [...rows, "dropped"];
  if (DATA.task === "multi") columns[rows.length] = "removed";
  figure(host, (width) => heatMap(host, width, rows, columns, DATA.matrix.cells, {
    label: "Given by corrected labels",
    paint: (r, c) => c === rows.length ? color("drop") : r === c ? color("anchor") : color("away"),
    tip: (r, c, value, share) => [line(r === c ? `${rows[r]} stays` : `${rows[r]} → ${columns[c]}`, true), line(`${count(value)}, ${percent(share)} of the row`)],
  }));
}

function curves() {
  const host = byId("curves");
  if (!host) return;
  const names = { pretrain: "Step 1: web labels", train: "Step 2: prototypes and correction", finetune: "Step 3: classifier on corrected labels" };
  const terms = { loss: "whole loss", cls: "classifier", prj: "projection", pro: "prototypes", ins: "instances", bts: "bootstrapping" };
  const hues = ["accent", "away", "good", "arrived", "drop", "plain"];
  const chart = (title, text, draw) => {
    const place = el("div", null);
    host.append(el("div", { class: "chart" }, el("h3", null, title), el("p", { class: "count-line" }, text), place));
    figure(place, (width) => draw(place, width));
  };
  const train = DATA.curves.train;
  const shares = train && train.length ? Object.keys(train[train.length - 1]).filter((key) => key in PAINTS) : [];
  if (shares.length) {
    const said = { anchor: "anchor", keep: "kept", relabel: "relabelled", drop: "dropped", add: "added", remove: "removed" };
    const rows = train.filter((row) => shares.every((key) => typeof row[key] === "number"));
    const word = DATA.task === "multi" ? "Share of all (image, class) decisions in each epoch since correction began, in per cent." : "Share of the images in each epoch since correction began, in per cent.";
    if (rows.length > 1) chart("Kept, corrected, dropped", word, (place, width) => stackChart(place, width, rows.map((row) => row.epoch + 1), shares.map((key) => ({ name: said[key] || key, paint: color(PAINTS[key]), y: rows.map((row) => row[key]) })),
      { label: "Verdicts by epoch", xLabel: "epoch", percent: true, whole: true, before: [legend(shares.map((key) => [said[key] || key, color(PAINTS[key])]))] }));
  }
  for (const [stage, history] of Object.entries(DATA.curves)) {
    if (!history.length) continue;
    const keys = Object.keys(history[0]).filter((key) => !["epoch", "lr"].includes(key) && !(key in PAINTS) && typeof history[0][key] === "number");
    if (keys.length === 2) keys.pop(); // one term: the whole loss again
    const series = () => keys.map((key, i) => ({ name: terms[key] || key, paint: color(hues[i % hues.length]), x: history.map((row) => row.epoch + 1), y: history.map((row) => row[key]), thin: key !== "loss" }));
    chart(names[stage] || stage, `Loss over ${history.length} ${history.length === 1 ? "epoch" : "epochs"}.`, (place, width) => lineChart(place, width, series(), { label: names[stage], xLabel: "epoch", whole: true, before: [legend(series().map((each) => [each.name, each.paint]))] }));
  }
}

function confusionFigure() {
  const host = byId("confusion-figure");
  if (!host) return;
  const names = DATA.confusion.classes.map(nameOf);
  const place = el("div", null);
  let model = "capro";
  const draw = (width) => heatMap(place, width, names, names, DATA.confusion[model], {
    label: `Confusion of ${model}`, paint: (r, c) => r === c ? color("anchor") : color("drop"),
    tip: (r, c, value, share) => [line(r === c ? `${names[r]}: right` : `${names[r]} taken for ${names[c]}`, true), line(`${count(value)} of the test images, ${percent(share)} of the row`)],
  });
  host.append(chips([["capro", "CAPro"], ["vanilla", "vanilla"]], model, (chosen) => { model = chosen; draw(place.clientWidth); }), place);
  figure(place, draw);
}

function reliabilityFigure() {
  const host = byId("reliability-figure");
  if (!host) return;
  figure(host, (width) => {
    const models = [["vanilla", "plain"], ["capro", "accent"]];
    const series = models.map(([name, paint]) => {
      const each = DATA.reliability[name], full = each.count.map((n, i) => i).filter((i) => each.count[i]);
      return { name: name === "capro" ? "CAPro" : name, paint: color(paint), x: full.map((i) => each.confidence[i]), y: full.map((i) => each.accuracy[i]), dots: true };
    });
    lineChart(host, Math.min(width, 620), series.reverse(), { label: "Reliability", height: 300, xRange: [0, 1], yRange: [0, 1], percent: true, percentX: true, diagonal: true,
      xLabel: DATA.task === "multi" ? "probability, per cent" : "confidence, per cent", xName: "confidence",
      before: [legend(models.map(([name, paint]) => [`${name === "capro" ? "CAPro" : name}: ECE ${percent(DATA.reliability[name].ece, 1)}`, color(paint)]))] });
  });
}

function thresholdFigure() {
  const host = byId("threshold-figure");
  if (!host) return;
  const multi = DATA.task === "multi", open = !multi && DATA.threshold.capro.open.some((value) => value !== null);
  const measures = multi ? [["precision", "precision"], ["recall", "recall"], ["f1", "F1"], ["labels", "labels per image"]]
    : [["answered", "images answered"], ["right", "answers that are right"], ["caught", "errors rejected"], ...(open ? [["open", "open images rejected"]] : []), ["f1", "C-F1"]];
  const best = DATA.threshold.capro.f1.reduce((at, value, i, all) => value > all[at] ? i : at, 0);
  const chosen = DATA.held_out ? Math.round(100 * DATA.held_out.threshold) : null;
  let now = chosen !== null ? chosen : multi || open ? best : 50;
  const body = el("tbody", null), value = el("output", null), place = el("div", null);
  const number = (key, share) => key === "labels" && share !== null ? share.toFixed(2) : percent(share, 1);
  const table = () => {
    value.textContent = (now / 100).toFixed(2);
    body.replaceChildren(...measures.map(([measure, name]) => el("tr", null, el("th", { scope: "row" }, name),
      ...["vanilla", "capro"].map((key) => el("td", { "data-measure": `${key}-${measure}` }, number(measure, DATA.threshold[key][measure][now]))))));
  };
  let mark = null, plot = null;
  const draw = (width) => {
    const x = Array.from({ length: 101 }, (_, i) => i / 100);
    const lines = multi ? [["precision", "away"], ["recall", "arrived"], ["f1", "accent"]] : [["answered", "plain"], ["right", "good"], ["f1", "accent"], ...(open ? [["open", "drop"]] : [])];
    const named = Object.fromEntries(measures);
    const series = [["capro", "CAPro", false], ["vanilla", "vanilla", true]].flatMap(([key, model, dash]) => lines.map(([measure, paint]) => ({ name: `${named[measure]} (${model})`, paint: color(paint), x, y: DATA.threshold[key][measure], dash, thin: dash })));
    plot = lineChart(place, width, series, { label: "By threshold", height: 270, xRange: [0, 1], yRange: [0, 1], percent: true, xLabel: "threshold (solid: CAPro, dashed: vanilla)", xName: "threshold",
      before: [legend(lines.map(([measure, paint]) => [named[measure], color(paint)]))] });
    if (chosen !== null) plot.root.append(svg("line", { class: "chosen", x1: plot.px(chosen / 100), x2: plot.px(chosen / 100), y1: PAD.top, y2: 270 - PAD.bottom, stroke: color("muted"), "stroke-width": 2, "stroke-dasharray": "2 3" }));
    mark = svg("line", { y1: PAD.top, y2: 270 - PAD.bottom, stroke: color("ink"), "stroke-width": 2 });
    plot.root.append(mark);
    set();
  };
  const set = () => { if (mark) { mark.setAttribute("x1", plot.px(now / 100)); mark.setAttribute("x2", plot.px(now / 100)); } table(); };
  const slider = el("input", { type: "range", min: 0, max: 100, value: now, id: "threshold-slider", "aria-label": "threshold", on: { input: (event) => { now = +event.target.value; set(); } } });
  host.append(el("div", { class: "slider" }, slider, value),
    el("div", { class: "scroll" }, el("table", { class: "numbers" }, el("thead", null, el("tr", null, el("th", null, "at this threshold"), el("th", { scope: "col" }, "vanilla"), el("th", { scope: "col" }, "CAPro"))), body)),
    ...(chosen === null ? [] : [el("p", { class: "count-line", id: "chosen-threshold" }, `${DATA.held_out.text} The dotted line marks it.`)]),
    el("p", { class: "count-line" }, multi || open ? `C-F1 of CAPro is best at ${(best / 100).toFixed(2)} on these test images.`.replace("C-F1", multi ? "F1" : "C-F1") : "All test images belong to the known classes: the threshold rejects uncertain predictions here, not images of other classes."), place);
  table();
  figure(place, draw);
}
