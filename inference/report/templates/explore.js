"use strict";
// Draws what a reader chooses of the figures in #data. Names reach the page as text only, never as markup.

(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const { topics, words, documents, items, users, votes, components, nouns } = page;
  const $ = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes ?? {})) {
      if (name === "onclick") node.addEventListener("click", value);
      else if (name === "style") Object.assign(node.style, value);
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  }
  const make = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  const draw = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

  const percent = (x) => {
    const p = 100 * x;
    return `${p >= 9.95 ? p.toFixed(p >= 99.95 ? 0 : 1) : p >= 0.095 ? p.toFixed(2) : p === 0 ? "0" : p.toPrecision(1)}%`.replace("e-", "e−");
  };
  const whole = (x) => `${Math.round(100 * x)}%`;
  const number = (x) => (Math.abs(x) >= 1000 ? Math.round(x).toLocaleString("en") : String(Number(x.toPrecision(3)))).replace("-", "−");
  const plural = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
  const sum = (list) => list.reduce((a, b) => a + b, 0);
  const range = (n) => [...Array(n).keys()];

  // Lists with one tab stop, moved in by arrows ------------------------------------------------------------------

  function rove(list, picked) {
    const stops = [...list.querySelectorAll("[data-stop]")].filter((one) => !one.closest("[hidden]"));
    const now = stops.includes(picked) ? picked : stops.find((one) => one.getAttribute("aria-current") === "true") ?? stops[0];
    for (const one of stops) one.setAttribute("tabindex", one === now ? "0" : "-1");
    if (list.dataset.roves) return;
    list.dataset.roves = "yes";
    list.addEventListener("keydown", (event) => {
      const all = [...list.querySelectorAll("[data-stop]")].filter((one) => !one.closest("[hidden]"));
      const at = all.indexOf(document.activeElement);
      const to = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1, PageDown: Math.min(at + 10, all.length - 1), PageUp: Math.max(at - 10, 0) }[event.key];
      if (at < 0 || to === undefined) return;
      event.preventDefault();
      const next = all[Math.min(Math.max(to, 0), all.length - 1)];
      for (const one of all) one.setAttribute("tabindex", one === next ? "0" : "-1");
      next.focus();
    });
    list.addEventListener("focusin", (event) => {
      const stop = event.target.closest("[data-stop]");
      if (stop) for (const one of list.querySelectorAll("[data-stop]")) one.setAttribute("tabindex", one === stop ? "0" : "-1");
    });
  }

  function replace(list, children) {
    const held = list.contains(document.activeElement);
    list.replaceChildren(...children);
    rove(list);
    if (held) list.querySelector("[data-stop]")?.focus();
  }

  // One line for each row: name, bar or range, value. Rows have name, note, value, text and, if they have them, low, high, back, mark, domain, open, pressed.
  function bars(list, rows, { full, scale } = {}) {
    const top = full ?? Math.max(...rows.map((row) => Math.max(Math.abs(row.value), row.high ?? 0, row.back ?? 0)), 1e-12);
    const place = (x, row) => {
      const [from, to] = row.domain ?? [0, top];
      return `${Math.min(100, Math.max(0, (100 * (x - from)) / (to - from || 1))).toFixed(2)}%`;
    };
    const line = (row) => {
      const track = make("span", { class: "track", "aria-hidden": "true" });
      if (scale !== "range") track.append(make("i", { class: row.value < 0 ? "neg" : null, style: { width: place(Math.abs(row.value), row) } }));
      if (row.back !== undefined) track.append(make("i", { class: "back", style: { width: place(row.back, row) } }));
      if (row.low !== undefined) {
        const from = parseFloat(place(row.low, row)), to = parseFloat(place(row.high, row));
        track.append(make("b", { style: { left: `${from}%`, width: `${Math.max(to - from, 0.3)}%` } }));
      }
      if (row.mark !== undefined) track.append(make("s", { style: { left: place(row.mark, row) } }));
      if (scale === "range") track.append(make("u", { style: { left: place(row.value, row) } }));
      const text = [row.name, row.note ? make("small", {}, row.note) : null];
      const name = row.open
        ? make("button", { type: "button", class: "name", "data-stop": "", "aria-pressed": row.pressed, onclick: row.open }, ...text)
        : make("span", { class: "name" }, ...text);
      const said = row.low === undefined ? null : make("span", { class: "sr" }, ` (${row.between})`);
      return make("li", { title: row.title }, name, track, make("span", { class: "value" }, row.text, said));
    };
    replace(list, rows.length ? rows.map(line) : [make("li", { style: { display: "block" } }, make("span", { class: "hint" }, "none"))]);
  }

  // The list at the left of a part, with its filter. line(i): children of the button. text(i): what the filter reads.
  function chooser(key, order, line, text, choose) {
    const list = $(`${key}-rows`), filter = $(`${key}-filter`), buttons = new Map();
    for (const i of order) {
      buttons.set(i, make("button", { type: "button", "data-stop": "", onclick: () => choose(i) }, ...line(i)));
      list.append(make("li", {}, buttons.get(i)));
    }
    const seen = (n) => ($(`${key}-count`).textContent = `${n} shown`);
    filter?.addEventListener("input", () => {
      const asked = filter.value.trim().toLowerCase();
      let shown = 0;
      for (const [i, button] of buttons) {
        button.parentNode.hidden = !text(i).toLowerCase().includes(asked);
        shown += !button.parentNode.hidden;
      }
      seen(shown);
      rove(list);
    });
    rove(list);
    return {
      mark(i) {
        for (const [j, button] of buttons) button.setAttribute("aria-current", j === i ? "true" : "false");
        const button = buttons.get(i);
        rove(list, button);
        const above = button.offsetTop - list.offsetTop;
        if (above < list.scrollTop || above + button.offsetHeight > list.scrollTop + list.clientHeight) list.scrollTop = above - list.clientHeight / 3;
      },
      focus: (i) => buttons.get(i)?.focus({ preventScroll: !still.matches && innerWidth > 720 }),
      redraw: () => buttons.forEach((button, i) => button.replaceChildren(...line(i))),
    };
  }

  const first = (left, right) => make("span", { class: "first" }, make("span", {}, left), make("span", {}, right ?? ""));
  const second = (text) => make("span", { class: "second" }, text);

  // Parts ----------------------------------------------------------------------------------------------------------

  const parts = {}; // tab -> { show(i), chosen, size }
  let current = "";

  function show(tab, i, focus) {
    if (!$(`tab-${tab}`)) return;
    for (const one of document.querySelectorAll("[role=tab]")) {
      const on = one.id === `tab-${tab}`;
      one.setAttribute("aria-selected", on);
      one.tabIndex = on ? 0 : -1;
      $(one.getAttribute("aria-controls")).hidden = !on;
    }
    current = tab;
    const part = parts[tab];
    if (part) {
      part.chosen = i >= 0 && i < part.size ? i : part.chosen;
      part.show(part.chosen);
      if (focus) part.focus(part.chosen);
    }
    try {
      history.replaceState(null, "", `#${tab}${part ? `=${part.chosen}` : ""}`);
    } catch {} // some browsers allow none for files
  }

  function part(tab, size, chosen, list, drawOne) {
    parts[tab] = { size, chosen, show: (i) => { list.mark(i); drawOne(i); }, focus: list.focus };
  }

  // Topics ---------------------------------------------------------------------------------------------------------

  const SHOWN = 30;
  let lambda = 0.6, word = null;

  function ranked(k, most) {
    const relevance = topics.words[k].map((w, i) => {
      const p = topics.p[k][i];
      return p > 0 ? lambda * Math.log(p) + (1 - lambda) * Math.log(p / words.p[w]) : -Infinity;
    });
    return range(relevance.length).sort((a, b) => relevance[b] - relevance[a] || a - b).slice(0, most);
  }
  const topWords = (k, most) => ranked(k, most).map((i) => words.names[topics.words[k][i]]).join(", ");
  const shareOf = (k) => (topics.share ? percent(topics.share[k]) : "");

  function topicLine(k) {
    const largest = topics.share && Math.max(...topics.share);
    const meter = topics.share ? make("span", { class: "meter", "aria-hidden": "true" }, make("i", { style: { width: `${(100 * topics.share[k]) / (largest || 1)}%` } })) : null;
    return [first(`Topic ${k}`, shareOf(k)), meter, second(topWords(k, 7))].filter(Boolean);
  }

  function drawWords(k) {
    const rows = ranked(k, SHOWN).map((i) => {
      const w = topics.words[k][i], p = topics.p[k][i];
      const ends = topics.low ? { low: topics.low[k][i], high: topics.high[k][i] } : {};
      const between = topics.low ? `90% from ${percent(ends.low)} to ${percent(ends.high)}` : "";
      const said = `${words.names[w]}: ${percent(p)} of the topic${between ? `, ${between}` : ""}; ${percent(words.p[w])} overall`;
      return { name: words.names[w], value: p, back: words.p[w], text: percent(p), between, title: said, ...ends, pressed: word === w, open: () => drawWord(w) };
    });
    bars($("topic-words"), rows);
  }

  function drawWord(w) {
    word = w === word ? null : w;
    $("word-card").hidden = word === null;
    const of = topics.words[parts.topics.chosen];
    for (const button of $("topic-words").querySelectorAll("button")) button.setAttribute("aria-pressed", word !== null && button.textContent === words.names[word] && of.includes(word));
    if (word !== null) {
      $("word-h").textContent = `“${words.names[word]}”`;
      $("word-hint").textContent = `Where the ${nouns.column} comes from: the probability of each topic given the ${nouns.column}. The map is shaded by it.`;
      bars($("word-topics"), words.topics[word].map((k, i) => ({ k, value: words.given[word][i] })).filter((row) => row.value >= 0.005).map(({ k, value }) => ({ name: `Topic ${k}`, note: topWords(k, 4), value, text: percent(value), open: () => show("topics", k) })), { full: 1 });
    }
    drawMap(parts.topics.chosen);
  }

  // Maps are drawn in pixels of their box, so that text has one size on every screen.
  const sizeOf = (box, ratio) => [Math.max(260, box.clientWidth), Math.round(Math.max(260, box.clientWidth) * ratio)];

  // Circles of these sizes at these places, on one scale for both axes.
  function laidOut(places, radii, wide, high, apart) {
    const most = Math.max(...radii) + 3;
    const [xs, ys] = [0, 1].map((axis) => places.map((place) => place[axis]));
    const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const scale = Math.min((wide - 2 * most) / (x1 - x0 || 1e-9), (high - 2 * most) / (y1 - y0 || 1e-9));
    const flat = x1 - x0 < 1e-9 && y1 - y0 < 1e-9;
    const at = places.map(([x, y]) => (flat ? [wide / 2, high / 2] : [wide / 2 + scale * (x - (x0 + x1) / 2), high / 2 - scale * (y - (y0 + y1) / 2)]));
    if (apart) for (let round = 0; round < 60; round += 1) moveApart(at, radii, wide, high);
    return at;
  }

  // One round of moving circles that cover each other, half of the way each, inside the frame.
  function moveApart(at, radii, wide, high) {
    for (let i = 0; i < at.length; i += 1) {
      for (let j = 0; j < i; j += 1) {
        const dx = at[i][0] - at[j][0], dy = at[i][1] - at[j][1], away = Math.hypot(dx, dy) || 1e-6;
        const by = (radii[i] + radii[j] + 2 - away) / 2;
        if (by <= 0) continue;
        const [ux, uy] = away > 1e-5 ? [dx / away, dy / away] : [Math.cos(i), Math.sin(i)];
        at[i] = [at[i][0] + by * ux, at[i][1] + by * uy];
        at[j] = [at[j][0] - by * ux, at[j][1] - by * uy];
      }
    }
    at.forEach(([x, y], i) => {
      const edge = radii[i] + 3;
      at[i] = [Math.min(wide - edge, Math.max(edge, x)), Math.min(high - edge, Math.max(edge, y))];
    });
  }

  function drawMap(chosen) {
    const K = topics.order.length, share = topics.share ?? range(K).map(() => 1 / K);
    const [wide, high] = sizeOf($("map"), 0.72);
    const radii = share.map((s) => Math.max(6, Math.sqrt((0.22 * wide * high * s) / Math.PI)));
    const at = laidOut(topics.place, radii, wide, high, true);
    const shade = word === null ? null : new Map(words.topics[word].map((k, i) => [k, words.given[word][i]]));
    const links = (topics.correlated ?? []).map(([a, b, r]) => draw("line", { class: r < 0 ? "link minus" : "link", "stroke-width": (6 * Math.abs(r)).toFixed(1), x1: at[a][0], y1: at[a][1], x2: at[b][0], y2: at[b][1] }, draw("title", {}, `Topics ${a} and ${b}: correlation ${number(r)}`)));
    const circles = topics.order.map((k) => {
      const [x, y] = at[k], open = () => { show("topics", k); $("map").querySelector(`[data-k="${k}"]`)?.focus(); };
      const group = draw("g", { class: `pick${k === chosen && !shade ? " on" : ""}${shade ? " shaded" : ""}${(shade?.get(k) ?? 0) > 0.55 ? " deep" : ""}`, role: "button", "data-stop": "", "data-k": k, "aria-current": k === chosen ? "true" : "false", "aria-label": `Topic ${k}${shareOf(k) && `, ${shareOf(k)}`}: ${topWords(k, 4)}`, onclick: open },
        draw("title", {}, `Topic ${k}${shareOf(k) && `, ${shareOf(k)}`}: ${topWords(k, 6)}`),
        draw("circle", { class: "bubble", cx: x, cy: y, r: radii[k], }),
        draw("circle", { class: "ring", cx: x, cy: y, r: radii[k] + 3 }),
        draw("text", { x, y: y + 4, "text-anchor": "middle", class: radii[k] < 9 ? "halo" : null }, String(k)));
      if (shade) group.style.setProperty("--shade", `${(4 + 96 * (shade.get(k) ?? 0)).toFixed(0)}%`);
      group.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        open();
      });
      return group;
    });
    const held = $("map").contains(document.activeElement);
    const picture = draw("svg", { viewBox: `0 0 ${wide} ${high}`, role: "group", "aria-label": "Map of topics" }, ...links, ...circles);
    $("map").replaceChildren(picture);
    rove($("map"), $("map").querySelector("[aria-current=true]"));
    if (held) $("map").querySelector("[aria-current=true]")?.focus();
    const area = topics.share ? "Areas are shares. " : "";
    const lines = topics.correlated?.length ? " Lines: correlations, dashed if negative." : "";
    $("map-hint").textContent = `${area}Near topics have similar ${nouns.columns} (Hellinger distance, in two dimensions); circles are moved apart where they would cover each other.${lines}`;
  }

  function drawRelated(k) {
    const linked = (topics.correlated ?? []).filter(([a, b]) => a === k || b === k).map(([a, b, r]) => [a === k ? b : a, r]);
    const row = ([j, value]) => ({ name: `Topic ${j}`, note: topWords(j, 5), value, text: value.toFixed(2).replace("-", "−"), open: () => show("topics", j) });
    $("correlated").hidden = topics.correlated === null;
    bars($("topic-correlated"), linked.map(row), { full: 1 });
    bars($("topic-near"), topics.near[k].slice(0, topics.correlated ? 4 : 6).map((j, i) => row([j, topics.similar[k][i]])));
  }

  if (topics) {
    const list = chooser("topic", topics.order, topicLine, (k) => topWords(k, 7), (k) => show("topics", k));
    part("topics", topics.order.length, topics.order[0], list, (k) => {
      $("topic-h").textContent = `Topic ${k}${shareOf(k) && `: ${shareOf(k)} ${topics.shareOf}`}`;
      drawWords(k);
      drawMap(k);
      drawRelated(k);
      if (documents) bars($("topic-documents"), documents.best[k].map((d, i) => ({ d, value: documents.bestShares[k][i] })).slice(0, 12).map(({ d, value }) => ({ name: documents.names[d], value, text: percent(value), open: () => show("documents", d, true) })), { full: 1 });
    });
    $("lambda").addEventListener("input", () => {
      lambda = Number($("lambda").value);
      $("lambda-value").textContent = lambda.toFixed(2);
      drawWords(parts.topics.chosen);
      list.redraw();
      list.mark(parts.topics.chosen);
    });
    const close = () => {
      if (word === null) return;
      drawWord(word);
      $("topic-words").querySelector("[tabindex='0']")?.focus();
    };
    $("word-close").addEventListener("click", close);
    $("panel-topics").addEventListener("keydown", (event) => event.key === "Escape" && close());
  }

  // Documents ------------------------------------------------------------------------------------------------------

  if (documents) {
    const line = (d) => [make("span", { class: "title" }, documents.names[d]), second(documents.topics[d].slice(0, 2).map((k, i) => `Topic ${k} ${whole(documents.shares[d][i])}`).join(" · "))];
    const list = chooser("document", range(documents.names.length), line, (d) => documents.names[d], (d) => show("documents", d));
    part("documents", documents.names.length, 0, list, (d) => {
      const length = documents.lengths ? ` · ${plural(documents.lengths[d], nouns.column, nouns.columns)} in all` : "";
      $("document-h").textContent = documents.names[d];
      $("document-facts").textContent = `Row ${documents.rows[d]}${length}`;
      const rows = documents.topics[d].map((k, i) => ({ k, value: documents.shares[d][i] })).filter((row, i) => row.value >= 0.005 || !i);
      bars($("document-topics"), rows.map(({ k, value }) => ({ name: `Topic ${k}`, note: topWords(k, 5), value, text: percent(value), open: () => show("topics", k, true) })), { full: 1 });
      bars($("document-near"), documents.near[d].map((e, i) => ({ name: documents.names[e], value: documents.similar[d][i], text: documents.similar[d][i].toFixed(2), title: "1 − Hellinger distance of their topics", open: () => show("documents", e, true) })), { full: 1 });
      if (!documents.words) return;
      const chips = documents.words[d].map((w) => make("button", { type: "button", "data-stop": "", onclick: () => openWord(w) }, words.names[w]));
      replace($("document-words"), chips);
    });
  }

  function openWord(w) {
    word = null;
    show("topics", words.topics[w][0], true);
    drawWord(w);
  }

  // Items and users ------------------------------------------------------------------------------------------------

  // A map of points: mark(i) gives its class, labels go to those listed first as long as they do not overlap.
  function scatter(box, places, names, { chosen, mark, labels, open, label }) {
    const [wide, high] = sizeOf(box, 0.88), size = places.length > 400 ? 3 : 4.5;
    const at = laidOut(places, places.map(() => 8), wide, high);
    const boxes = [], texts = [];
    for (const i of new Set(labels)) {
      const name = names[i].length > 24 ? `${names[i].slice(0, 23)}…` : names[i];
      const long = 6.3 * name.length, [x, y] = at[i], left = x + 9 + long < wide ? x + 9 : x - 9 - long;
      const own = [left, y - 8, left + long, y + 6];
      if (left < 0 || boxes.some((b) => b[0] < own[2] && own[0] < b[2] && b[1] < own[3] && own[1] < b[3])) continue;
      boxes.push(own);
      texts.push(draw("text", { x: left, y: y + 4, class: "halo" }, name));
    }
    const order = range(places.length).filter((i) => i !== chosen).concat(chosen === null ? [] : [chosen]);
    const dots = order.map((i) => {
      const [x, y] = at[i], said = label(i), kind = mark(i);
      const shape = kind.includes("nay") ? draw("rect", { class: `dot ${kind}`, x: x - size, y: y - size, width: 2 * size, height: 2 * size, transform: `rotate(45 ${x} ${y})` }) : draw("circle", { class: `dot ${kind}`, cx: x, cy: y, r: i === chosen ? 7 : size });
      const group = draw("g", { class: `pick ${i === chosen ? "on" : ""} ${kind}`, role: "button", "data-stop": "", "aria-current": i === chosen ? "true" : "false", "aria-label": said, onclick: () => open(i) }, draw("title", {}, said), shape, draw("circle", { class: "ring", cx: x, cy: y, r: 9 }));
      group.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        open(i);
      });
      return group;
    });
    const held = box.contains(document.activeElement);
    box.replaceChildren(draw("svg", { viewBox: `0 0 ${wide} ${high}`, role: "group", "aria-label": "Map" }, ...dots, ...texts));
    rove(box, box.querySelector("[aria-current=true]"));
    if (held) box.querySelector("[aria-current=true]")?.focus();
  }

  if (items) {
    const about = (i) => (items.ratings ? `${plural(items.ratings[i], "rating", "ratings")}${items.ratings[i] ? `, mean ${number(items.mean[i])}` : ""}` : "");
    const order = range(items.names.length);
    if (items.ratings) order.sort((a, b) => items.ratings[b] - items.ratings[a] || a - b);
    const line = (i) => [make("span", { class: "title" }, items.names[i]), second(about(i))];
    const list = chooser("item", order, line, (i) => items.names[i], (i) => show("items", i));
    part("items", items.names.length, order[0], list, (i) => {
      $("item-h").textContent = items.names[i];
      $("item-facts").textContent = about(i);
      bars($("item-near"), items.near[i].map((j, n) => ({ name: items.names[j], note: about(j), value: items.similar[i][n], text: items.similar[i][n].toFixed(2).replace("-", "−"), title: "cosine in factor space", open: () => show("items", j) })), { full: 1 });
      const near = new Set(items.near[i]);
      scatter($("item-map"), items.place, items.names, { chosen: i, mark: (j) => (near.has(j) ? "neighbour" : ""), labels: [i, ...items.near[i].slice(0, 5), ...order.slice(0, 60)], open: (j) => show("items", j), label: (j) => items.names[j] });
    });
  }

  if (users) {
    const about = (i) => (users.ratings ? `${plural(users.ratings[i], "rating", "ratings")}${users.ratings[i] ? `, mean ${number(users.mean[i])}` : ""}` : "");
    const line = (i) => [make("span", { class: "title" }, users.names[i]), second(about(i))];
    const list = chooser("user", range(users.names.length), line, (i) => users.names[i], (i) => show("users", i));
    part("users", users.names.length, 0, list, (i) => {
      $("user-h").textContent = users.names[i];
      $("user-facts").textContent = about(i);
      const ends = users.limits ?? [Math.min(...users.top[i].map((row) => row[2])), Math.max(...users.top[i].map((row) => row[3]))];
      const rows = users.top[i].map(([item, mean, low, high]) => ({ name: items.names[item], value: mean, low, high, domain: ends, text: mean.toFixed(2).replace("-", "−"), between: `90% from ${number(low)} to ${number(high)}`, title: `${number(mean)}, 90% from ${number(low)} to ${number(high)}`, open: () => show("items", item, true) }));
      bars($("user-top"), rows, { scale: "range" });
      if (!users.known) return;
      const [rated, given] = users.known[i].length ? users.known[i] : [[], []];
      bars($("user-known"), rated.map((item, n) => ({ name: items.names[item], value: given[n], domain: users.limits ? [Math.min(0, users.limits[0]), users.limits[1]] : undefined, text: number(given[n]), open: () => show("items", item, true) })));
    });
  }

  // Votes ----------------------------------------------------------------------------------------------------------

  if (votes) {
    let bill = votes.bills ? 0 : null, member = null;
    const cast = (m) => (votes.cast ? { y: "voted yea", n: "voted nay", "-": "did not vote" }[votes.cast[bill][m]] : "");
    const said = (m) => {
      const own = votes.share ? `yea in ${whole(votes.share[m])} of the votes` : "";
      const here = bill === null ? "" : `probability of yea on this bill ${votes.yea[bill][m]}%${votes.cast ? `, ${cast(m)}` : ""}`;
      return `${votes.members[m]}: ${[here, own].filter(Boolean).join("; ")}`;
    };
    const choose = (m) => {
      member = m;
      $("member-facts").textContent = said(m);
      drawMembers();
    };
    const drawMembers = () => scatter($("member-map"), votes.place, votes.members, { chosen: member, mark: (m) => (bill === null ? "" : votes.yea[bill][m] >= 50 ? "yea" : "nay"), labels: member === null ? [] : [member], open: choose, label: said });
    const lines = (members) => members.map((m) => ({ name: votes.members[m], note: cast(m), value: votes.yea[bill][m], text: `${votes.yea[bill][m]}%`, title: "probability of yea", open: () => choose(m) }));

    const histogram = () => {
      const bins = range(20).map(() => [0, 0]), wide = 440, half = 70;
      votes.yea[bill].forEach((p, m) => {
        const vote = votes.cast ? votes.cast[bill][m] : "y";
        if (vote !== "-") bins[Math.min(19, Math.floor(p / 5))][vote === "y" ? 0 : 1] += 1;
      });
      const most = Math.max(1, ...bins.flat()), step = wide / 20;
      const bar = (n, i, up) => draw("rect", { class: `dot ${up ? "yea" : "nay"}`, x: i * step + 1, width: step - 2, y: up ? half - (half * n) / most : half, height: (half * n) / most }, draw("title", {}, `${n} members, ${5 * i} to ${5 * i + 5}%`));
      const both = bins.flatMap(([yea, nay], i) => [bar(yea, i, true), bar(nay, i, false)]).filter((one) => Number(one.getAttribute("height")) > 0);
      const ticks = [0, 25, 50, 75, 100].map((p) => draw("text", { class: "small", x: (wide * p) / 100, y: (votes.cast ? 2 : 1) * half + 16, "text-anchor": p === 0 ? "start" : p === 100 ? "end" : "middle" }, `${p}%`));
      const told = votes.cast ? "Members by probability of yea: those who voted yea above the line, nay below." : "Members by probability of yea.";
      $("bill-chart").replaceChildren(draw("svg", { viewBox: `0 0 ${wide} ${(votes.cast ? 2 : 1) * half + 20}`, role: "img", "aria-label": told }, ...both, draw("line", { class: "axis", x1: 0, x2: wide, y1: half, y2: half }), ...ticks), make("p", { class: "hint" }, told));
    };

    const drawBill = (b) => {
      bill = b;
      const p = votes.yea[b], M = range(p.length);
      $("bill-h").textContent = votes.bills[b];
      const expected = `${Math.round(sum(p) / 100)} of ${p.length} yea expected`;
      const known = votes.cast ? [...votes.cast[b]] : [];
      const counted = votes.cast ? `; ${known.filter((v) => v === "y").length} yea, ${known.filter((v) => v === "n").length} nay cast` : "";
      $("bill-facts").textContent = expected + counted;
      histogram();
      bars($("bill-unsure"), lines(M.sort((x, y) => Math.abs(p[x] - 50) - Math.abs(p[y] - 50) || x - y).slice(0, 6)), { full: 100 });
      const wrong = (m) => (known[m] === "y" ? 100 - p[m] : known[m] === "n" ? p[m] : -1);
      const odd = range(p.length).filter((m) => wrong(m) > 50).sort((x, y) => wrong(y) - wrong(x) || x - y);
      bars($("bill-surprise"), lines(odd.slice(0, 6)), { full: 100 });
      $("bill-surprise").previousElementSibling.hidden = $("bill-surprise").hidden = !votes.cast;
      if (member !== null) $("member-facts").textContent = said(member);
      drawMembers();
    };

    if (votes.bills) {
      $("member-legend").append(make("span", {}, make("i", { class: "swatch yea" }), "yea likelier"), make("span", {}, make("i", { class: "swatch nay" }), "nay likelier"));
      $("member-hint").textContent = "The first two principal components of the members' tastes, for the chosen bill. Open a member for figures.";
      const line = (b) => [make("span", { class: "title" }, votes.bills[b]), second(`${whole(sum(votes.yea[b]) / (100 * votes.members.length))} yea expected`)];
      const list = chooser("bill", range(votes.bills.length), line, (b) => votes.bills[b], (b) => show("votes", b));
      part("votes", votes.bills.length, 0, list, drawBill);
    } else {
      $("member-hint").textContent = "The first two principal components of the members' tastes.";
      drawMembers();
    }
    votes.openMember = (m) => { show("votes"); choose(m); };
  }

  // Components -----------------------------------------------------------------------------------------------------

  if (components) {
    const flat = components.mean ? components.mean.flat() : [0, 1];
    const [low, high] = [Math.min(...flat), Math.max(...flat)];

    const image = (k, big) => {
      const side = components.side, canvas = make("canvas", { width: side, height: side, class: big ? "big" : null, role: big ? "img" : null, "aria-label": big ? `Means of component ${k} as an image, dark where large` : null, "aria-hidden": big ? null : "true" });
      const brush = canvas.getContext("2d"), pixels = brush.createImageData(side, side);
      components.mean[k].forEach((x, i) => pixels.data.set([...Array(3).fill(255 * (1 - (x - low) / (high - low || 1))), 255], 4 * i));
      brush.putImageData(pixels, 0, 0);
      return canvas;
    };

    const profile = (k) => {
      const own = components.mean[k], wide = 640, tall = 200, from = Math.min(low, 0), to = Math.max(high, 0);
      const y = (v) => tall - (tall * (v - from)) / (to - from || 1), step = wide / own.length, thick = Math.max(0.6, Math.min(step - 1.5, 60));
      const columns = own.map((v, i) => draw("rect", { class: "column", x: (i + 0.5) * step - thick / 2, width: thick, y: Math.min(y(v), y(0)), height: Math.abs(y(v) - y(0)) }, draw("title", {}, `${components.columns[i]}: ${number(v)}`)));
      const average = components.average.map((v, i) => draw("line", { class: "mean", x1: i * step + step * 0.1, x2: (i + 1) * step - step * 0.1, y1: y(v), y2: y(v) }));
      const names = own.length <= 8 ? components.columns.map((name, i) => draw("text", { class: "small", x: (i + 0.5) * step, y: tall + 16, "text-anchor": "middle" }, name.length * 6 > step ? `${name.slice(0, Math.max(2, Math.floor(step / 6) - 1))}…` : name)) : [];
      return draw("svg", { viewBox: `-4 -4 ${wide + 8} ${tall + (names.length ? 28 : 8)}`, role: "img", "aria-label": `Means of component ${k} over the ${nouns.columns}; lines are the average of all components` }, ...columns, draw("line", { class: "axis", x1: 0, x2: wide, y1: y(0), y2: y(0) }), ...average, ...names);
    };

    const weight = (k) => (components.weight ? percent(components.weight[k]) : "");
    const line = (k) => {
      const meter = components.weight ? make("span", { class: "meter", "aria-hidden": "true" }, make("i", { style: { width: `${(100 * components.weight[k]) / (Math.max(...components.weight) || 1)}%` } })) : null;
      const text = [first(`Component ${k}`, weight(k)), meter, second(components.best[k].slice(0, 4).map((c) => components.columns[c]).join(", "))].filter(Boolean);
      return components.side ? [make("span", { class: "thumb" }, image(k), make("span", {}, ...text))] : text;
    };
    const list = chooser("component", components.order, line, String, (k) => show("components", k));
    part("components", components.order.length, components.order[0], list, (k) => {
      const sd = components.weightSd ? ` ± ${percent(components.weightSd[k])} (one sd)` : "";
      $("component-h").textContent = `Component ${k}`;
      $("component-facts").textContent = components.weight ? `Weight ${weight(k)}${sd}` : "";
      if (components.mean) $("component-chart").replaceChildren(components.side ? image(k, true) : profile(k));
      const rows = components.best[k].map((c, n) => {
        const value = components.value[k][n], ends = components.low ? { low: components.low[k][n], high: components.high[k][n] } : {};
        const all = [value, components.average[c], ...Object.values(ends), ...(components.mean ?? []).map((own) => own[c])];
        const from = Math.min(...all), to = Math.max(...all), pad = 0.04 * (to - from || 1);
        const between = components.low ? `90% from ${number(ends.low)} to ${number(ends.high)}` : "";
        return { name: components.columns[c], value, mark: components.average[c], ...ends, between, domain: [from - pad, to + pad], text: number(value), title: `${number(value)}${between && `, ${between}`}; average of all components ${number(components.average[c])}` };
      });
      bars($("component-best"), rows, { scale: "range" });
    });
  }

  // Search ---------------------------------------------------------------------------------------------------------

  const search = $("search"), found = $("found");
  let entries = null, at = -1;

  function everything() {
    const all = [], add = (names, kind, open) => names?.forEach((name, i) => all.push({ name, kind, low: name.toLowerCase(), open: () => open(i) }));
    if (topics) add(words.names, nouns.column, openWord);
    add(documents?.names, nouns.row, (d) => show("documents", d, true));
    add(items?.names, nouns.column, (i) => show("items", i, true));
    add(users?.names, nouns.row, (i) => show("users", i, true));
    if (!documents) add(votes?.bills, "bill", (b) => show("votes", b, true));
    add(votes?.members, "member", (m) => votes.openMember(m));
    return all;
  }

  function closeSearch() {
    found.hidden = true;
    at = -1;
    search.setAttribute("aria-expanded", "false");
    search.removeAttribute("aria-activedescendant");
  }

  function pick(n) {
    const options = found.querySelectorAll("[role=option]");
    if (!options.length) return;
    at = (n + options.length) % options.length;
    options.forEach((one, i) => one.setAttribute("aria-selected", i === at));
    search.setAttribute("aria-activedescendant", options[at].id);
    options[at].scrollIntoView({ block: "nearest" });
  }

  function look() {
    const asked = search.value.trim().toLowerCase();
    if (!asked) return closeSearch();
    entries ??= everything();
    const hits = entries.filter((one) => one.low.includes(asked));
    hits.sort((a, b) => b.low.startsWith(asked) - a.low.startsWith(asked) || a.low.length - b.low.length);
    const options = hits.slice(0, 12).map((one, i) => make("li", { role: "option", id: `found-${i}`, "aria-selected": "false", onclick: () => { search.value = ""; closeSearch(); one.open(); } }, make("b", { style: { fontWeight: 400 } }, one.name), make("span", {}, one.kind)));
    const rest = hits.length - options.length;
    if (!options.length || rest) options.push(make("li", { class: "none", role: "presentation" }, options.length ? `and ${rest.toLocaleString("en")} more` : "Nothing on this page has that in its name."));
    found.replaceChildren(...options);
    found.hidden = false;
    search.setAttribute("aria-expanded", "true");
    if (hits.length) pick(0);
  }

  if (search) {
    search.addEventListener("input", look);
    search.addEventListener("focus", look);
    search.addEventListener("blur", () => setTimeout(closeSearch, 150));
    search.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown" || event.key === "ArrowUp") pick(at + (event.key === "ArrowDown" ? 1 : -1));
      else if (event.key === "Enter" && at >= 0) found.querySelectorAll("[role=option]")[at].click();
      else if (event.key === "Escape") { search.value = ""; closeSearch(); }
      else return;
      event.preventDefault();
    });
    found.addEventListener("mousedown", (event) => event.preventDefault()); // the field keeps the focus until the click
    document.addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.closest("input")) return;
      event.preventDefault();
      search.focus();
    });
  }

  // Tabs, colours and the start --------------------------------------------------------------------------------------

  const tabs = [...document.querySelectorAll("[role=tab]")];
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => show(tab.id.slice(4)));
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const next = tabs[(to + tabs.length) % tabs.length];
      show(next.id.slice(4));
      next.focus();
    });
  });

  const themes = ["auto", "light", "dark"];
  $("theme").addEventListener("click", () => {
    const next = themes[(themes.indexOf($("theme-name").textContent) + 1) % 3];
    $("theme-name").textContent = next;
    $("theme").setAttribute("aria-label", `Colours: ${next === "auto" ? "as the system has them" : next}`);
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
  });

  function read() {
    const [tab, i] = location.hash.slice(1).split("=");
    if (tab === "main" && current) return;
    show($(`tab-${tab}`) ? tab : tabs[0].id.slice(4), Number.parseInt(i, 10));
  }
  addEventListener("hashchange", read);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    parts[current]?.show(parts[current].chosen);
  });
  read();
})();
