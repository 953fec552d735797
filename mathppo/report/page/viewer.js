"use strict";
// Charts: a cursor that reads every line at one position. Rollouts: tokens coloured by a number, filters, a readout.
// All text from the run is set with textContent; nothing here parses it as HTML.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const tip = document.getElementById("tip");
  const make = (name, className, text) => {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const short = (x) => {
    const size = Math.abs(x);
    return size === 0 ? "0" : size >= 1e4 || size < 1e-3 ? x.toExponential(1) : String(Number(x.toPrecision(3)));
  };
  const share = (x) => `${Number((100 * x).toFixed(1))}%`;

  for (const svg of document.querySelectorAll("svg[data-hover]")) {
    const data = JSON.parse(svg.dataset.hover);
    const write = data.percent ? share : short;
    const [left, right, top, bottom] = data.frame;
    const cursor = document.createElementNS(SVG, "g");
    svg.append(cursor);
    const hide = () => { cursor.replaceChildren(); tip.hidden = true; };
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const at = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
      if (at < left - 6 || at > right + 6) return hide();
      // Every line is read at its own point nearest to the pointer, if that point is near at all.
      const found = data.series.map((s) => {
        let best = 0;
        for (let i = 1; i < s.px.length; i++) if (Math.abs(s.px[i] - at) < Math.abs(s.px[best] - at)) best = i;
        return { s, i: best, gap: Math.abs(s.px[best] - at) };
      });
      const nearest = found.reduce((a, b) => (b.gap < a.gap ? b : a));
      const x = nearest.s.x[nearest.i], px = nearest.s.px[nearest.i];
      cursor.replaceChildren();
      const line = document.createElementNS(SVG, "path");
      line.setAttribute("class", "cursor");
      line.setAttribute("d", `M${px},${top}V${bottom}`);
      cursor.append(line);
      tip.replaceChildren(make("b", "", `${data.x} ${short(x)}`));
      for (const { s, i } of found) {
        if (Math.abs(s.px[i] - px) > 8) continue;
        const dot = document.createElementNS(SVG, "circle");
        dot.setAttribute("class", `cursor-dot tone-${s.tone}`);
        dot.setAttribute("cx", s.px[i]); dot.setAttribute("cy", s.py[i]); dot.setAttribute("r", 3.6);
        cursor.append(dot);
        const row = make("div");
        row.append(make("i", `swatch area tone-${s.tone}`), make("span", "", s.label), make("span", "", write(s.y[i])));
        tip.append(row);
      }
      tip.hidden = false;
      const width = tip.offsetWidth, height = tip.offsetHeight;
      tip.style.left = `${Math.max(8, Math.min(event.clientX + 16, innerWidth - width - 8))}px`;
      tip.style.top = `${event.clientY + height + 24 > innerHeight ? event.clientY - height - 12 : event.clientY + 16}px`;
    });
  }

  const rollouts = JSON.parse(document.getElementById("tokens").textContent);
  if (!rollouts.length) return;
  const list = document.getElementById("list");
  const cards = [...list.querySelectorAll(".rollout")];
  const get = (id) => document.getElementById(id);
  const NAMES = { advantage: "advantage", value: "value", td: "TD residual", logratio: "log-ratio", kl: "KL (k3)", surprise: "surprise (-log p)" };
  const POSITIVE = ["kl", "surprise"];
  for (const r of rollouts) {
    r.surprise = r.logprob.map((x) => -x);
    if (r.logratio) r.kl = r.logratio.map((x) => Math.expm1(x) - x);
  }
  const kinds = Object.keys(NAMES).filter((kind) => rollouts.some((r) => r[kind]));
  for (const kind of kinds) get("colour").append(new Option(NAMES[kind], kind));
  get("controls").hidden = get("key").hidden = false;

  // One scale for all rollouts, so that a colour means the same number everywhere. Values are read against .5.
  const scaleOf = (kind) => {
    const all = rollouts.flatMap((r) => r[kind] || []);
    const inUnit = kind === "value" && all.every((x) => x >= -0.2 && x <= 1.2);
    const middle = inUnit ? 0.5 : 0;
    return { middle, reach: inUnit ? 0.5 : Math.max(1e-9, ...all.map(Math.abs)) };
  };
  const paint = (card) => {
    const r = rollouts[card.dataset.index], kind = get("colour").value, { middle, reach } = scaleOf(kind);
    const spans = card.querySelectorAll(".t");
    spans.forEach((span, i) => {
      const number = r[kind] ? (r[kind][i] - middle) / reach : 0;
      const side = number < 0 || POSITIVE.includes(kind) ? "--low" : "--high";
      span.style.background = `rgba(var(${side}), ${(0.6 * Math.min(1, Math.abs(number))).toFixed(3)})`;
    });
  };
  const readout = (card, i) => {
    const r = rollouts[card.dataset.index], line = card.querySelector(".readout");
    card.querySelectorAll(".t.on").forEach((span) => span.classList.remove("on"));
    card.querySelectorAll(".t")[i].classList.add("on");
    card.dataset.token = i;
    const fact = (name, value) => { const s = make("span", "", `${name} `); s.append(make("b", "", value)); line.append(s); };
    line.replaceChildren();
    fact("token", `${i + 1} of ${r.tokens.length}`);
    fact("text", JSON.stringify(r.tokens[i]));
    fact("probability", share(Math.exp(r.logprob[i])));
    fact("log p", short(r.logprob[i]));
    for (const [kind, name] of [["value", "value"], ["td", "TD residual"], ["advantage", "advantage"], ["logratio", "log-ratio"], ["kl", "KL"]])
      if (r[kind]) fact(name, short(r[kind][i]));
  };
  const draw = (card) => {
    if (!card.open) return;
    const pre = card.querySelector(".completion");
    if (!pre.querySelector(".t")) {
      pre.replaceChildren(...rollouts[card.dataset.index].tokens.map((text, i) => {
        const span = make("span", "t");
        span.dataset.i = i;
        text.split(/(\n)/).forEach((part) => {
          if (part === "\n") span.append(make("span", "mark", "⏎"));
          span.append(part);
        });
        return span;
      }));
    }
    paint(card);
  };
  for (const card of cards) {
    const pre = card.querySelector(".completion");
    const point = (event) => { const span = event.target.closest(".t"); if (span) readout(card, Number(span.dataset.i)); };
    pre.addEventListener("pointerover", point);
    pre.addEventListener("click", point);
    pre.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const last = rollouts[card.dataset.index].tokens.length - 1;
      readout(card, Math.max(0, Math.min(last, Number(card.dataset.token ?? -1) + step)));
    });
    card.addEventListener("toggle", () => draw(card));
    draw(card);
  }
  const recolour = () => {
    const kind = get("colour").value, { middle, reach } = scaleOf(kind);
    const one = POSITIVE.includes(kind);
    get("key").classList.toggle("one", one);
    get("key-low").textContent = one ? "0" : short(middle - reach);
    get("key-high").textContent = short(middle + reach);
    cards.forEach(draw);
  };
  const sift = () => {
    const verdict = get("verdict").value, problem = get("problem")?.value, cut = get("truncated").checked, words = get("search").value.toLowerCase();
    let shown = 0;
    for (const card of cards) {
      const text = `${card.dataset.problem}\n${card.querySelector(".question").dataset.text}\n${rollouts[card.dataset.index].tokens.join("")}`.toLowerCase();
      card.hidden = Boolean((verdict && card.dataset.verdict !== verdict) || (problem && card.dataset.problem !== problem) || (cut && card.dataset.truncated !== "1") || (words && !text.includes(words)));
      shown += !card.hidden;
    }
    get("none").hidden = shown > 0;
  };
  const sorts = {
    run: (a, b) => a.dataset.index - b.dataset.index,
    long: (a, b) => rollouts[b.dataset.index].tokens.length - rollouts[a.dataset.index].tokens.length,
    surprise: (a, b) => Math.max(...rollouts[b.dataset.index].surprise) - Math.max(...rollouts[a.dataset.index].surprise),
  };
  get("order").addEventListener("change", () => list.append(...[...cards].sort(sorts[get("order").value])));
  get("colour").addEventListener("change", recolour);
  get("verdict").addEventListener("change", sift);
  get("problem")?.addEventListener("change", sift);
  get("truncated").addEventListener("change", sift);
  get("search").addEventListener("input", sift);
  get("controls").addEventListener("submit", (event) => event.preventDefault());
  recolour();
})();
