// Line charts, stacked areas and heat maps: small, drawn at the width of their place.
const PAD = { left: 42, right: 12, top: 10, bottom: 32 };

function ticks(low, high, wanted) {
  const raw = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= raw);
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + 1e-9; value += step) found.push(+value.toPrecision(10));
  return found;
}
function frame(width, height, x, y, options) {
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": options.label });
  const px = (value) => PAD.left + (value - x[0]) / (x[1] - x[0] || 1) * (width - PAD.left - PAD.right);
  const py = (value) => height - PAD.bottom - (value - y[0]) / (y[1] - y[0] || 1) * (height - PAD.top - PAD.bottom);
  const show = options.percent ? (value) => `${Math.round(100 * value)}` : (value) => String(value);
  for (const value of ticks(y[0], y[1], 4)) {
    root.append(svg("line", { x1: PAD.left, x2: width - PAD.right, y1: py(value), y2: py(value), stroke: color("line") }),
      svg("text", { x: PAD.left - 7, y: py(value) + 4, "text-anchor": "end", class: "muted" }, show(value)));
  }
  const whole = (value) => !options.whole || Number.isInteger(value);
  for (const value of ticks(x[0], x[1], Math.max(2, Math.floor(width / 80))).filter(whole)) {
    root.append(svg("text", { x: px(value), y: height - PAD.bottom + 16, "text-anchor": "middle", class: "muted" }, options.percentX ? Math.round(100 * value) : value));
  }
  root.append(svg("text", { x: (PAD.left + width - PAD.right) / 2, y: height - 2, "text-anchor": "middle", class: "muted" }, options.xLabel || ""));
  return { root, px, py };
}
function path(points) { return points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join(""); }

// series: [{ name, paint, x, y }]; null breaks a line. Returns the frame, for marks of the caller's.
function lineChart(host, width, series, options) {
  const height = options.height || 230;
  const xs = series.flatMap((each) => each.x), ys = series.flatMap((each) => each.y).filter((value) => value !== null);
  const x = options.xRange || [Math.min(...xs), Math.max(...xs)];
  const y = options.yRange || [Math.min(0, ...ys), Math.max(...ys) * 1.05 || 1];
  const plot = frame(width, height, x, y, options);
  if (options.diagonal) plot.root.append(svg("line", { x1: plot.px(0), y1: plot.py(0), x2: plot.px(1), y2: plot.py(1), stroke: color("plain"), "stroke-dasharray": "4 4" }));
  for (const each of series) {
    const points = each.x.map((value, i) => each.y[i] === null ? null : [plot.px(value), plot.py(each.y[i])]).filter(Boolean);
    plot.root.append(svg("path", { d: path(points), fill: "none", stroke: each.paint, "stroke-width": each.thin ? 1.4 : 2.4, "stroke-linejoin": "round", "stroke-dasharray": each.dash ? "5 4" : null }));
    if (each.dots || points.length === 1) for (const [cx, cy] of points) plot.root.append(svg("circle", { cx, cy, r: 3.2, fill: each.paint }));
  }
  const axis = series[0].x;
  const cross = svg("line", { y1: PAD.top, y2: height - PAD.bottom, stroke: color("muted"), visibility: "hidden" });
  plot.root.append(cross);
  plot.root.addEventListener("pointermove", (event) => {
    const at = event.clientX - plot.root.getBoundingClientRect().left;
    let best = 0;
    axis.forEach((value, i) => { if (Math.abs(plot.px(value) - at) < Math.abs(plot.px(axis[best]) - at)) best = i; });
    cross.setAttribute("x1", plot.px(axis[best])); cross.setAttribute("x2", plot.px(axis[best]));
    cross.setAttribute("visibility", "visible");
    const show = (value) => value === null || value === undefined ? "–" : options.percent ? percent(value, 1) : value.toPrecision(3);
    showTip(event, line(`${options.xName || options.xLabel} ${options.percentX ? percent(axis[best]) : axis[best]}`, true), ...series.map((each) => line(`${each.name}: ${show(each.y[best])}`)));
  });
  plot.root.addEventListener("pointerleave", () => { cross.setAttribute("visibility", "hidden"); hideTip(); });
  host.replaceChildren(...(options.before || []), plot.root);
  return plot;
}

// layers: [{ name, paint, y }] that sum to one.
function stackChart(host, width, x, layers, options) {
  const height = options.height || 230;
  const plot = frame(width, height, [x[0], x[x.length - 1]], [0, 1], options);
  let below = x.map(() => 0);
  for (const layer of layers) {
    const above = below.map((value, i) => value + layer.y[i]);
    const up = x.map((value, i) => [plot.px(value), plot.py(above[i])]);
    const down = x.map((value, i) => [plot.px(value), plot.py(below[i])]).reverse();
    const area = svg("path", { d: `${path([...up, ...down])}Z`, fill: layer.paint });
    fill(area, { on: tipped(() => [line(layer.name, true), line(`first epoch ${percent(layer.y[0], 1)}, last ${percent(layer.y[layer.y.length - 1], 1)}`)]) }, []);
    plot.root.append(area);
    below = above;
  }
  host.replaceChildren(...(options.before || []), plot.root);
}

// A matrix with named rows and columns; paint(row, column, share of the row) gives a colour.
function heatMap(host, width, rows, columns, cells, options) {
  const longest = (names) => Math.max(...names.map((name) => Math.min(name.length, 16)));
  const left = Math.min(118, 14 + 6.6 * longest(rows)), top = 14 + 5.2 * longest(columns);
  const side = Math.max(13, Math.min(44, (width - left - 22) / columns.length));
  const root = svg("svg", { width: Math.max(width, left + side * columns.length + 20), height: top + side * rows.length + 8, role: "img", "aria-label": options.label });
  columns.forEach((name, c) => root.append(svg("text", { x: 0, y: 0, transform: `translate(${left + side * (c + 0.62)} ${top - 7}) rotate(-52)`, class: "muted" }, clip(name, 16))));
  rows.forEach((name, r) => {
    const sum = cells[r].reduce((a, b) => a + b, 0) || 1;
    root.append(svg("text", { x: left - 8, y: top + side * (r + 0.5) + 4, "text-anchor": "end", class: side < 15 ? "muted" : null }, clip(name, 16)));
    root.append(svg("rect", { x: left, y: top + side * r + 0.5, width: side * columns.length, height: side - 1, fill: color("soft") }));
    cells[r].forEach((value, c) => {
      if (!value) return;
      const share = value / sum;
      const cell = svg("g", { on: tipped(() => options.tip(r, c, value, share)) },
        svg("rect", { x: left + side * c + 0.5, y: top + side * r + 0.5, width: side - 1, height: side - 1, rx: 2, fill: options.paint(r, c), "fill-opacity": Math.min(1, 0.08 + share ** 0.7).toFixed(3) }));
      if (side >= 25) cell.append(svg("text", { x: left + side * (c + 0.5), y: top + side * (r + 0.5) + 4, "text-anchor": "middle", class: share > 0.4 ? "cell strong" : "cell" }, value));
      root.append(cell);
    });
  });
  host.replaceChildren(...(options.before || []), root);
}
