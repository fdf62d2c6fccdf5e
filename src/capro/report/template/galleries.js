// Galleries by class, built when a class is opened; top matches side by side.
function card(sample, kind, evidence, score) {
  const title = DATA.samples.title[sample] || DATA.samples.text[sample];
  const moved = ["away", "arrived", "any"].includes(kind) ? el("span", { class: "move" }, move(sample)) : null;
  return el("button", { type: "button", class: "card", on: { click: () => openDetail(sample, evidence, score) } },
    picture(sample),
    el("span", { class: "words" }, moved,
      el("span", { class: title ? "clamp2" : "quiet", dir: "auto" }, title || "no text"),
      el("span", { class: "clamp3" }, evidence)));
}

function gallery(place, part, kind, order) {
  const cards = part.items.map((sample, i) => () => card(sample, kind, part.evidence[i], part.scores && part.scores[i]));
  const first = innerWidth < 760 ? 6 : 12;
  const box = el("div", { class: "cards" }, ...cards.slice(0, first).map((make) => make()));
  place.replaceChildren(
    el("p", { class: "count-line" }, part.items.length < part.total ? `${count(part.items.length)} of ${count(part.total)} are shown, ${order}` : `${count(part.total)} ${part.total === 1 ? "image" : "images"}`),
    box);
  if (cards.length > first) place.append(el("button", { type: "button", class: "more", on: { click: (event) => { event.currentTarget.remove(); box.append(...cards.slice(first).map((make) => make())); } } }, `Show ${cards.length - first} more`));
}

function classGallery(each) {
  const body = el("div", { class: "body" });
  const counts = DATA.noise.classes.find((row) => row.label === each.label).counts;
  const stack = el("span", { class: "stack", role: "img", "aria-label": DATA.noise.kinds.map((kind, i) => `${KIND[kind]} ${counts[i]}`).join(", ") });
  for (const [i, kind] of DATA.noise.kinds.entries()) {
    if (!counts[i] || kind === "arrived") continue;
    const part = el("i", { class: kind });
    part.style.flex = `${counts[i]} 0 0`;
    stack.append(part);
  }
  const fillBody = () => {
    const place = el("div", null);
    const show = (kind) => gallery(place, each.parts[kind], kind, NOTE[kind]);
    const kinds = DATA.noise.kinds.filter((kind) => each.parts[kind].total);
    const meaning = DATA.meanings[each.label];
    if (meaning) body.append(el("p", { class: "how", dir: "auto" }, `Class text: ${meaning}`));
    body.append(chips(DATA.noise.kinds.map((kind) => [kind, KIND[kind], count(each.parts[kind].total), !each.parts[kind].total]), kinds[0], show), place);
    if (kinds.length) show(kinds[0]);
  };
  return el("details", { class: "class", "data-label": each.label, on: { toggle: (event) => { if (event.target.open && !body.childNodes.length) fillBody(); } } },
    el("summary", null, el("span", { class: "name" }, nameOf(each.label)), el("span", { class: "meaning" }, DATA.meanings[each.label]), stack), body);
}
const NOTE = { anchor: "best first", keep: "from the surest to the most doubtful", away: "surest first", arrived: "surest first", drop: "lowest score first" };

function galleries() {
  const host = document.getElementById("class-list");
  if (!host) return;
  const made = DATA.galleries.classes.map(classGallery);
  if (made.length > 20) {
    host.append(el("input", { class: "field", type: "search", placeholder: "Find a class", "aria-label": "Find a class", on: { input: (event) => {
      const wanted = event.target.value.toLowerCase();
      for (const details of made) details.hidden = !nameOf(+details.dataset.label).toLowerCase().includes(wanted);
    } } }));
  }
  host.append(...made);
  if (made.length) made[0].open = true;
}

function dropped() {
  const host = document.getElementById("dropped-list");
  if (!host) return;
  const { levels, now } = DATA.dropped, place = el("div", null);
  const show = (i) => gallery(place, levels[i], "any", NOTE.keep);
  const options = levels.map((level, i) => {
    const range = i ? `${level.value} to ${levels[i - 1].value}` : `above ${level.value}`;
    return [i, level.value < now ? `${range}, not dropped` : range, count(level.total), !level.total];
  });
  const first = levels.findIndex((level) => level.total);
  host.append(chips(options, first, show), place);
  if (first >= 0) show(first);
}

function findings() {
  const host = document.getElementById("finding-list");
  if (!host) return;
  host.append(...DATA.findings.map((each) => el("div", null, el("h3", null, each.text),
    el("div", { class: "small" }, ...each.items.map((sample) => el("button", { type: "button",
      on: { ...tipped(() => [line(move(sample), true), line(DATA.samples.title[sample] || "no title")]), click: () => openDetail(sample, each.text) } },
      picture(sample)))))));
}

function matches() {
  const host = document.getElementById("match-figure");
  if (!host) return;
  const titles = { text: "Text alone", smoothed: "Smoothed", reranked: "Re-ranked" };
  const columns = el("div", { class: "columns" });
  const show = (each) => columns.replaceChildren(...DATA.matches.columns.map((name) => el("div", null, el("h3", null, titles[name]),
    el("div", { class: "small" }, ...each[name].map((sample, i) => {
      const kind = DATA.samples.after && each[`${name}_anchor`][i] ? "anchor" : verdict(sample);
      const said = `text distance ${each[`${name}_distance`][i].toFixed(3)}`;
      return el("button", { type: "button", on: { ...tipped(() => [line(move(sample), true), line(DATA.samples.title[sample] || "no title"), line(said)]), click: () => openDetail(sample, `Number ${i + 1} of “${nameOf(each.label)}”: ${said}.`) } },
        picture(sample), el("span", { class: `line ${kind || ""}` }));
    })))));
  const pick = el("select", { class: "field", "aria-label": "class", on: { change: (event) => show(DATA.matches.classes[+event.target.value]) } },
    ...DATA.matches.classes.map((each, i) => el("option", { value: i }, `${nameOf(each.label)} (${DATA.matches.top < each.of ? `${DATA.matches.top} of ` : ""}${count(each.of)})`)));
  host.append(pick, ...(DATA.samples.after ? [legend(["anchor", "keep", "away", "drop"].map((kind) => [kind === "away" ? "label changed" : KIND[kind], `var(--${kind})`]))] : []), columns);
  if (DATA.matches.classes.length) show(DATA.matches.classes[0]);
}
