"use strict";
/* The page. `D` is what payload.py made; `state` is what the controls say; `update` draws everything that follows
   from the two. A cluster keeps its number, and so its colour, from one k to the next. */
(() => {
  const D = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);

  /* Okabe and Ito's colours, then greedily the colour that differs most from all before it to normal and to
     colour-blind eyes, on light and on dark paper. Numbers and names stand beside them everywhere. */
  const PALETTE = [
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#86465b", "#a264f6", "#a5cb90", "#ba2d1f",
    "#4941cf", "#44d6d6", "#b93c8c", "#8b87d8", "#a00286", "#63b376", "#607753", "#f96e43", "#eabf3a", "#6e5dd8",
    "#6248a9", "#ff7ef6", "#5f621e", "#8abead", "#647bc8", "#e13156", "#b180fc", "#b2b959", "#3b7378", "#b468a0",
    "#c09ad2", "#7ea04a", "#b48486", "#a447b1", "#cdb7f6", "#4d9ebc",
  ];
  const colourOf = (number) => PALETTE[number % PALETTE.length];
  const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];
  const cividis = CIVIDIS.map((colour, i) => [i / (CIVIDIS.length - 1), colour]);

  // ---------------------------------------------------------------------------------------------------- small tools

  const ARRAYS = { i4: Int32Array, f4: Float32Array, u1: Uint8Array };
  const unpack = ({ type, data }) => new ARRAYS[type](Uint8Array.from(atob(data), (c) => c.charCodeAt(0)).buffer);
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const count = (value, word) => `${value.toLocaleString("en")} ${word}${value === 1 ? "" : "s"}`;
  const percent = (value) => `${Math.round(100 * value)} %`;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;"); // for Plotly's texts

  /** An element; text is never read as HTML. */
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name === "style") Object.assign(element.style, value);
      else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child != null));
    return element;
  }

  // ------------------------------------------------------------------------------------------------------- the data

  const rows = {
    row: unpack(D.rows.row), name: D.rows.name, confidence: unpack(D.rows.confidence), known: unpack(D.rows.known),
    truth: D.rows.truth && unpack(D.rows.truth),
  };
  const nShown = rows.row.length;
  const shownRows = Array.from({ length: nShown }, (_, i) => i);
  const maps = D.maps.map((map) => {
    const xy = unpack(map.xy);
    return { ...map, x: shownRows.map((i) => xy[2 * i]), y: shownRows.map((i) => xy[2 * i + 1]) };
  });
  const edges = unpack(D.edges), mustLink = unpack(D.mustLink);
  for (const cut of D.cuts) cut.finest = unpack(cut.finest);
  const chosenCut = D.cuts.findIndex((cut) => cut.guard === D.guard);
  const isWithheld = (i) => rows.truth !== null && rows.truth[i] >= 0 && D.classes[rows.truth[i]].withheld;
  const rowName = (i) => (rows.name ? `${rows.name[i]} (row ${rows.row[i]})` : `${rows.row[i]}`);

  const state = { k: D.nClusters, cut: chosenCut, colourBy: "cluster", edges: false, only: null };

  /** The clustering that the sliders ask for, as near as the hierarchy gets. */
  function clustering() {
    const cut = D.cuts[state.cut];
    const k = clamp(state.k, cut.first, cut.last);
    const number = cut.size.map((_, id) => id); // of the cluster that each finest cluster is part of
    for (let t = cut.splits.length - 1; t >= k - cut.first; t--) {
      const [child, parent] = cut.splits[t];
      number.forEach((value, id) => { if (value === child) number[id] = parent; });
    }
    return { cut, k, number, label: Array.from(cut.finest, (id) => number[id]) };
  }

  /** Size, mean confidence and classes of each cluster, over all rows of the data. */
  function describe({ cut, number }) {
    const clusters = new Map();
    const at = (id) => {
      if (!clusters.has(number[id])) clusters.set(number[id], { size: 0, confidence: 0, known: new Map(), truth: new Map() });
      return clusters.get(number[id]);
    };
    cut.size.forEach((size, id) => {
      if (size === 0) return;
      at(id).size += size;
      at(id).confidence += cut.confidence[id];
    });
    for (const kind of ["known", "truth"]) {
      for (const [id, code, n] of cut[kind] ?? []) at(id)[kind].set(code, (at(id)[kind].get(code) ?? 0) + n);
    }
    return new Map([...clusters].sort(([a], [b]) => a - b));
  }

  /** Each class gets the colour of the cluster it is most at home in, so that rows in the wrong place stand out. */
  const classColours = (() => {
    const pairs = [];
    for (const [number, { known, truth }] of describe(clustering())) {
      for (const [code, n] of D.rows.truth ? truth : known) pairs.push([n, code, number]);
    }
    const colours = new Array(D.classes.length).fill(null), taken = new Set();
    for (const [, code, number] of pairs.sort((a, b) => b[0] - a[0])) {
      if (colours[code] !== null || taken.has(number)) continue;
      colours[code] = number;
      taken.add(number);
    }
    let next = 0;
    return colours.map((number) => {
      if (number !== null) return colourOf(number);
      while (taken.has(next)) next++;
      taken.add(next);
      return colourOf(next);
    });
  })();

  // --------------------------------------------------------------------------------------------- pictures and the tip

  const sheet = D.images;
  if (sheet) document.head.append(make("style", {}, `.picture { background-image: url("${sheet.url}"); }`));

  function picture(i, side) {
    const zoom = side / Math.max(sheet.width, sheet.height);
    const [column, line] = [i % sheet.columns, Math.floor(i / sheet.columns)];
    const lines = Math.ceil(nShown / sheet.columns);
    const [width, height] = [sheet.width * zoom, sheet.height * zoom];
    return make("span", {
      class: "picture", role: "img", "aria-label": `row ${rows.row[i]}`,
      style: {
        width: `${width}px`, height: `${height}px`, flex: "none", backgroundSize: `${width * sheet.columns}px ${height * lines}px`,
        backgroundPosition: `${-column * width}px ${-line * height}px`,
      },
    });
  }

  function showTip(event, pictures, facts) {
    const tip = $("tip");
    const list = make("dl");
    for (const [name, value] of facts) list.append(make("dt", {}, name), make("dd", {}, value));
    tip.replaceChildren(...pictures, list);
    tip.hidden = false;
    const [x, y] = [event.clientX ?? 0, event.clientY ?? 0];
    const box = tip.getBoundingClientRect();
    const left = x + 18 + box.width > innerWidth - 8 ? x - 18 - box.width : x + 18;
    tip.style.left = `${clamp(left, 8, Math.max(8, innerWidth - box.width - 8))}px`;
    tip.style.top = `${clamp(y - box.height / 2, 8, Math.max(8, innerHeight - box.height - 8))}px`;
  }
  const hideTip = () => { $("tip").hidden = true; };
  addEventListener("scroll", hideTip, { passive: true });

  function rowFacts(i, label) {
    const facts = [["row", rowName(i)], ["cluster", `${label}`]];
    facts.push(["label", rows.known[i] < 0 ? "not given" : D.classes[rows.known[i]].name]);
    if (rows.truth && rows.truth[i] >= 0) {
      facts.push(["truth", D.classes[rows.truth[i]].name + (isWithheld(i) ? " (never labelled)" : "")]);
    }
    facts.push(["confidence", percent(rows.confidence[i])]);
    return facts;
  }

  // ------------------------------------------------------------------------------------------------------- the plots

  const touch = matchMedia("(pointer: coarse)").matches;
  const CONFIG = { responsive: true, displaylogo: false, displayModeBar: touch ? false : "hover", scrollZoom: false,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };

  function layout(more = {}) {
    const axis = { gridcolor: css("--line"), zeroline: false, linecolor: css("--line"), tickcolor: css("--line"), fixedrange: touch, automargin: true };
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, autosize: true,
      font: { family: "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", size: 12, color: css("--soft") },
      margin: { l: 8, r: 8, t: 8, b: 8 }, hovermode: "closest", dragmode: touch ? false : "pan",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--faint"), activecolor: css("--accent") },
      ...more,
      xaxis: { ...axis, ...more.xaxis }, yaxis: { ...axis, ...more.yaxis },
    };
  }

  /** What each shown row belongs to under "colour by": group numbers (-1: none), and each group's name and colour. */
  function grouping(current) {
    if (state.colourBy === "known" || state.colourBy === "truth") {
      const group = Array.from(rows[state.colourBy]);
      const found = D.classes.map(({ name, withheld }, id) => ({ id, name, withheld, colour: classColours[id] }));
      const sizes = classSizes(current.cut, state.colourBy);
      return { group, groups: found.map((g) => ({ ...g, size: sizes[g.id] })).filter((g) => g.size > 0) };
    }
    const groups = [...current.clusters].map(([id, { size }]) => ({ id, name: `${id}`, size, colour: colourOf(id) }));
    return { group: current.label, groups };
  }

  function classSizes(cut, kind) {
    const sizes = D.classes.map(() => 0);
    for (const [, code, n] of cut[kind] ?? []) sizes[code] += n;
    return sizes;
  }

  /** The row of each group that is nearest to the group's median: where its name stands. */
  function middles({ x, y }, group, groups) {
    const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];
    return groups.map(({ id }) => {
      const members = shownRows.filter((i) => group[i] === id);
      if (!members.length) return null;
      const [mx, my] = [median(members.map((i) => x[i])), median(members.map((i) => y[i]))];
      const far = (i) => (x[i] - mx) ** 2 + (y[i] - my) ** 2;
      return members.reduce((best, i) => (far(i) < far(best) ? i : best));
    });
  }

  function lines({ x, y }, label, fixed) {
    const path = { x: [], y: [] };
    for (let e = 0; state.edges && e < mustLink.length; e++) {
      const [i, j] = [edges[2 * e], edges[2 * e + 1]];
      if (label[i] !== label[j] || Boolean(mustLink[e]) !== fixed) continue;
      path.x.push(x[i], x[j], null);
      path.y.push(y[i], y[j], null);
    }
    return { type: "scatter", mode: "lines", hoverinfo: "skip", ...path,
      line: { color: css("--edge"), width: fixed ? 0.7 : 1.2, dash: fixed ? "dot" : "solid" } };
  }

  function markers(group, groups) {
    const colour = new Map(groups.map((g) => [g.id, g.colour])), faint = css("--faint"), ink = css("--ink");
    const more = nShown > 800 ? 0 : nShown > 200 ? 1.5 : 4, scale = innerWidth < 720 ? 0.75 : 1;
    const dim = (i) => state.only !== null && group[i] !== state.only;
    const marker = {
      color: shownRows.map((i) => colour.get(group[i]) ?? faint),
      symbol: shownRows.map((i) => (isWithheld(i) ? "diamond" : "circle")),
      size: shownRows.map((i) => scale * ((group[i] < 0 ? 4.5 : isWithheld(i) ? 7.5 : 6) + (rows.known[i] >= 0 ? 2 : 0) + more)),
      opacity: shownRows.map((i) => (dim(i) ? 0.07 : group[i] < 0 ? 0.45 : 0.85)),
      line: { color: ink, width: shownRows.map((i) => (rows.known[i] >= 0 ? 1.6 : 0)) },
    };
    if (state.colourBy === "confidence") {
      Object.assign(marker, { color: Array.from(rows.confidence), cmin: 0, cmax: 1, colorscale: cividis });
    }
    return marker;
  }

  function drawMaps(current) {
    const { group, groups } = grouping(current);
    if (state.only !== null && !groups.some((g) => g.id === state.only)) state.only = null;
    const marker = markers(group, groups);
    maps.forEach((map, m) => {
      const at = middles(map, group, groups).map((i, g) => [i, groups[g]]).filter(([i]) => i !== null);
      const hidden = { showgrid: false, showticklabels: false, ticks: "", showline: false, range: [-1.07, 1.07] };
      Plotly.react($(`map-${m}`), [
        lines(map, current.label, true),
        lines(map, current.label, false),
        { type: "scatter", mode: "markers", x: map.x, y: map.y, marker, hoverinfo: "none" },
        { type: "scatter", mode: "text", hoverinfo: "skip", x: at.map(([i]) => map.x[i]), y: at.map(([i]) => map.y[i]),
          text: at.map(([, g]) => plain(g.name)), textfont: { size: 15, weight: 700, color: css("--ink") } },
      ], layout({ xaxis: hidden, yaxis: { ...hidden, scaleanchor: "x" }, margin: { l: 0, r: 0, t: 0, b: 0 }, uirevision: "map" }), CONFIG);
    });
    drawLegend(groups, group);
  }
  const POINTS = 2; // the trace above that has the rows

  function drawLegend(groups, group) {
    const legend = $("legend");
    if (state.colourBy === "confidence") {
      const gradient = `linear-gradient(90deg, ${CIVIDIS.join(", ")})`;
      legend.replaceChildren(make("span", {}, "0 %"), make("span", { class: "scale", style: { background: gradient, alignSelf: "center" } }), make("span", {}, "100 % confidence"));
      return;
    }
    const chips = groups.map((g) => make("button", {
      type: "button", class: "chip", "aria-pressed": `${state.only === g.id}`, "data-group": g.id,
      onclick: () => { state.only = state.only === g.id ? null : g.id; schedule(); legendFocus = g.id; },
    }, make("span", { class: `swatch${g.withheld ? " withheld" : ""}`, style: { background: g.colour } }),
    make("b", {}, g.name), make("small", {}, count(g.size, "row"))));
    if (group.some((g) => g < 0)) chips.push(make("span", { class: "chip" }, make("span", { class: "swatch", style: { background: css("--faint") } }), make("b", {}, "not given")));
    legend.replaceChildren(...chips);
    if (legendFocus !== null) legend.querySelector(`[data-group="${legendFocus}"]`)?.focus();
    legendFocus = null;
  }
  let legendFocus = null; // the chip that was pressed is drawn again, and must not lose the keyboard

  function ring(m, i) {
    const plot = $(`map-${m}`), { xaxis, yaxis } = plot._fullLayout;
    plot.querySelector(".ring")?.remove();
    const [left, top] = [xaxis._offset + xaxis.d2p(maps[m].x[i]), yaxis._offset + yaxis.d2p(maps[m].y[i])];
    plot.append(make("div", { class: "ring", style: { left: `${left}px`, top: `${top}px` } }));
  }

  function forgetRow() {
    hideTip();
    document.querySelectorAll(".ring").forEach((element) => element.remove());
  }

  function listenToMaps() {
    maps.forEach((_, m) => {
      const show = ({ points: [point], event }) => {
        if (!point || point.curveNumber !== POINTS) return;
        const i = point.pointNumber;
        showTip(event, sheet ? [picture(i, 84)] : [], rowFacts(i, now.label[i]));
        maps.forEach((_, other) => ring(other, i));
      };
      const plot = $(`map-${m}`);
      plot.on("plotly_hover", show);
      plot.on("plotly_click", show);
      plot.on("plotly_unhover", forgetRow);
    });
  }

  // --------------------------------------------------------------------------------------------- clusters, in a table

  function drawClusters({ clusters, label }) {
    const columns = ["Cluster", "Rows", "Confidence", "Labels given", D.rows.truth && "True classes", sheet && "Surest rows | least sure"].filter(Boolean);
    const members = new Map([...clusters.keys()].map((number) => [number, []]));
    shownRows.forEach((i) => members.get(label[i]).push(i));
    const body = [...clusters].map(([number, cluster]) => {
      const sure = cluster.confidence / cluster.size;
      return make("tr", {},
        make("td", {}, make("span", { class: "tag" }, make("span", { class: "swatch", style: { background: colourOf(number) } }), `${number}`)),
        make("td", { class: "size" }, cluster.size.toLocaleString("en")),
        make("td", { class: "wide" }, make("div", { class: "bar" }, make("span", {}, make("i", { style: { width: `${100 * sure}%` } })), make("b", {}, percent(sure)))),
        make("td", { class: "wide inside", "data-name": "Labels given" }, ...inside(cluster.known, D.labelled ? "none: a new group" : "none")),
        D.rows.truth && make("td", { class: "wide inside", "data-name": "True classes" }, ...inside(cluster.truth, "unknown")),
        sheet && make("td", { class: "wide" }, examples(members.get(number))));
    });
    $("clusters").replaceChildren(
      make("thead", {}, make("tr", {}, ...columns.map((name) => make("th", { scope: "col" }, name)))), make("tbody", {}, ...body));
    const chosen = state.k === D.nClusters && state.cut === chosenCut;
    $("clusters-note").textContent = chosen ? "" : "Sizes and classes are those of the clusters shown; confidence was measured for the run’s own choice.";
  }

  /** "7 ×12, 1 ×2", the most frequent first. */
  function inside(classes, nothing) {
    if (!classes.size) return [make("em", {}, nothing)];
    const sorted = [...classes].sort((a, b) => b[1] - a[1]);
    const parts = sorted.slice(0, 4).flatMap(([code, n], position) => [
      position ? ", " : "", make("b", { style: { fontWeight: position ? 400 : 600 } }, D.classes[code].name), make("em", {}, ` ×${n.toLocaleString("en")}`),
    ]);
    return sorted.length > 4 ? [...parts, make("em", {}, `, ${sorted.length - 4} more`)] : parts;
  }

  function examples(members) {
    const sorted = [...members].sort((a, b) => rows.confidence[b] - rows.confidence[a]);
    const [sure, unsure] = [sorted.slice(0, 5), sorted.slice(5).slice(-3)];
    return make("div", { class: "thumbs" }, ...sure.map((i) => picture(i, 28)), unsure.length ? make("hr") : null, ...unsure.map((i) => picture(i, 28)));
  }

  // ------------------------------------------------------------------------------------------------------- dendrogram

  /** Nodes of the tree over the finest clusters: a leaf per cluster, then a join per split, the last split first. */
  function joinTree(cut) {
    const top = new Map(cut.size.flatMap((size, id) => (size ? [[id, { id, size, leaf: true }]] : [])));
    const joins = [];
    for (let t = cut.splits.length - 1; t >= 0; t--) {
      const [child, parent, height] = cut.splits[t];
      const [a, b] = [top.get(parent), top.get(child)];
      const node = { id: parent, split: t, height: height ?? 0, size: a.size + b.size, parts: [a, b] };
      joins.push(node);
      top.set(parent, node);
      top.delete(child);
    }
    const leaves = [];
    const place = (node) => {
      if (node.leaf) node.x = leaves.push(node) - 1;
      else { node.parts.forEach(place); node.x = (node.parts[0].x + node.parts[1].x) / 2; }
    };
    const roots = [...top.values()].sort((a, b) => b.size - a.size);
    roots.forEach(place);
    return { joins, leaves, roots };
  }

  function drawDendrogram({ cut, k, number }) {
    const { joins, leaves, roots } = (cut.tree ??= joinTree(cut));
    const heights = joins.map((join) => join.height);
    const low = Math.min(0, ...heights), high = Math.max(...heights, low + 1e-9);
    const base = low < 0 ? low - 0.1 * (high - low) : 0;
    const bottom = (node) => (node.leaf ? base : node.height);
    const isCut = (node) => !node.leaf && node.split < k - cut.first;
    const paths = new Map(), tags = [];
    const draw = (colour, points) => {
      if (!paths.has(colour)) paths.set(colour, { x: [], y: [] });
      for (const [x, y] of [...points, [null, null]]) { paths.get(colour).x.push(x); paths.get(colour).y.push(y); }
    };
    for (const join of joins) {
      const [a, b] = join.parts;
      draw(isCut(join) ? css("--faint") : colourOf(number[join.id]), [[a.x, bottom(a)], [a.x, join.height], [b.x, join.height], [b.x, bottom(b)]]);
    }
    const tops = [...roots, ...joins.filter(isCut).flatMap((join) => join.parts)].filter((node) => !isCut(node));
    for (const node of tops) tags.push({ x: node.x, y: bottom(node), id: number[node.id] });
    const next = heights[cut.splits.length - 1 - (k - cut.first)] ?? base; // joins are in the reverse order of splits
    const last = heights[cut.splits.length - (k - cut.first)] ?? high * 1.04;
    const level = (next + last) / 2;
    const traces = [...paths].map(([colour, path]) => ({ type: "scatter", mode: "lines", ...path, hoverinfo: "skip", line: { color: colour, width: 2 } }));
    traces.push({ type: "scatter", mode: "markers+text", x: tags.map((t) => t.x), y: tags.map((t) => t.y), text: tags.map((t) => `${t.id}`), textposition: "top center",
      cliponaxis: false, textfont: { color: css("--ink"), size: 12 }, marker: { color: tags.map((t) => colourOf(t.id)), size: 9 },
      customdata: tags.map((t) => t.id), hoverinfo: "none" });
    Plotly.react($("dendrogram"), traces, layout({
      xaxis: { showgrid: false, tickvals: leaves.length > 60 ? [] : leaves.map((leaf) => leaf.x), ticktext: leaves.map((leaf) => leaf.size.toLocaleString("en")),
        tickangle: -90, tickfont: { size: innerWidth < 720 ? 8 : 10 }, range: [-0.8, leaves.length - 0.2], fixedrange: true, title: { text: "rows in each group", font: { size: 12 } } },
      yaxis: { title: { text: "dissimilarity where they join", font: { size: 12 } }, range: [base, high + 0.1 * (high - base)], fixedrange: true },
      margin: { l: 50, r: 8, t: 12, b: 50 }, dragmode: false,
      shapes: joins.length ? [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: level, y1: level, line: { color: css("--ink"), width: 1.4, dash: "dash" } }] : [],
    }), { ...CONFIG, displayModeBar: false });
  }

  // ----------------------------------------------------------------------------------------------- matrix and curves

  const matrix = { shown: unpack(D.matrix.shown), percent: unpack(D.matrix.percent), cluster: unpack(D.matrix.cluster) };

  function drawMatrix() {
    const n = matrix.shown.length;
    const z = Array.from({ length: n }, (_, i) => Array.from(matrix.percent.subarray(i * n, (i + 1) * n)));
    const starts = shownRows.slice(0, n).filter((i) => i === 0 || matrix.cluster[i] !== matrix.cluster[i - 1]);
    const ticks = starts.map((start, c) => (start + (starts[c + 1] ?? n) - 1) / 2);
    const room = (c) => (starts[c + 1] ?? n) - starts[c] > 0.03 * n; // for the cluster's number
    const axis = { tickvals: ticks, ticktext: starts.map((i, c) => (room(c) ? `${matrix.cluster[i]}` : "")), tickangle: 0, showgrid: false, ticks: "", fixedrange: true, constrain: "domain", range: [-0.5, n - 0.5], automargin: false };
    const line = (x0, x1, y0, y1) => ({ type: "line", x0, x1, y0, y1, line: { color: "rgba(255,255,255,.55)", width: 1 } });
    Plotly.react($("matrix"), [{ type: "heatmap", z, zmin: 0, zmax: 100, colorscale: cividis, hoverinfo: "none", zsmooth: false,
      colorbar: { thickness: 10, outlinewidth: 0, len: 0.9, ticksuffix: " %", tickfont: { size: 11 } } }],
    layout({ xaxis: { ...axis, title: { text: "cluster", font: { size: 12 } } }, yaxis: { ...axis, range: [n - 0.5, -0.5], scaleanchor: "x" }, margin: { l: 30, r: 4, t: 8, b: 40 }, dragmode: false,
      shapes: starts.slice(1).flatMap((s) => [line(s - 0.5, s - 0.5, -0.5, n - 0.5), line(-0.5, n - 0.5, s - 0.5, s - 0.5)]) }), { ...CONFIG, displayModeBar: false });
    $("matrix-note").textContent = `${count(n, "row")} of the map, the run’s ${count(D.nClusters, "cluster")}, ${D.matrix.draws} draws of noise of scale ${D.matrix.epsilon}.`;
  }

  function listenToMatrix() {
    const plot = $("matrix");
    plot.on("plotly_hover", ({ points: [point], event }) => {
      const [i, j] = [point.y, point.x].map((position) => matrix.shown[position]);
      const pictures = sheet ? [picture(i, 52), picture(j, 52)] : [];
      showTip(event, pictures, [["rows", `${rowName(i)} and ${rowName(j)}`], ["clusters", `${matrix.cluster[point.y]} and ${matrix.cluster[point.x]}`], ["together", `${point.z} % of draws`]]);
    });
    plot.on("plotly_unhover", hideTip);
  }

  function drawCurves() {
    if (!D.curves.length) { $("curves-section").hidden = true; return; }
    if (!$("curves").children.length) {
      D.curves.forEach(({ name }, c) => $("curves").append(make("div", {}, make("h3", {}, name), make("div", { class: "plot", id: `curve-${c}`, role: "img", "aria-label": `Curve: ${name}` }))));
    }
    D.curves.forEach(({ x, y }, c) => Plotly.react($(`curve-${c}`),
      [{ type: "scatter", mode: x.length > 60 ? "lines" : "lines+markers", x, y, line: { color: css("--accent"), width: 2 }, marker: { size: 5 }, hovertemplate: "step %{x}: %{y:.4g}<extra></extra>" }],
      layout({ xaxis: { showgrid: false, title: { text: "step", font: { size: 12 } } }, yaxis: { nticks: 5 }, margin: { l: 44, r: 10, t: 8, b: 36 }, hovermode: "x", dragmode: false }), { ...CONFIG, displayModeBar: false }));
  }

  // ------------------------------------------------------------------------------------------------- what stands still

  const SCORE_NAMES = { error: "Error ↓", ari: "ARI ↑", nmi: "NMI ↑", ami: "AMI ↑", accuracy: "Accuracy ↑" };
  const FEWER_IS_BETTER = new Set(["error"]);

  function fillScores() {
    const { columns, rows: methods } = D.scores;
    if (!methods.length) { $("scores-section").hidden = true; return; }
    const best = columns.map((name, c) => {
      const values = methods.map((row) => row.values[c]).filter((value) => typeof value === "number");
      return values.length && name in SCORE_NAMES ? Math[FEWER_IS_BETTER.has(name) ? "min" : "max"](...values) : null;
    });
    const cell = (value, c) => make("td", { class: `number${value !== null && value === best[c] ? " best" : ""}`, "data-name": SCORE_NAMES[columns[c]] ?? columns[c] }, value === null ? "–" : typeof value === "number" ? (Number.isInteger(value) && !(columns[c] in SCORE_NAMES) ? `${value}` : value.toFixed(3)) : value);
    $("scores").replaceChildren(
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Method"), ...columns.map((name) => make("th", { scope: "col", class: "number" }, SCORE_NAMES[name] ?? name)))),
      make("tbody", {}, ...methods.map(({ method, ours, values }) => make("tr", { class: ours ? "ours" : null }, make("td", {}, method), ...values.map(cell)))));
  }

  function fillHead() {
    const withheld = D.classes.filter((c) => c.withheld), bold = (text) => make("b", {}, text);
    const parts = [bold(count(D.nRows, "row")), " in ", bold(count(D.nClusters, "cluster")), ". "];
    if (D.labelled) parts.push("The labels of ", bold(count(D.labelled, "row")), " were given");
    else parts.push("No labels were given");
    if (withheld.length) parts.push("; ", bold(count(withheld.length, "class").replace("classs", "classes")), withheld.length === 1 ? " was never labelled (" : " were never labelled (", withheld.map((c) => c.name).join(", "), ")");
    parts.push(". ", bold(percent(D.sure.share)), " of the rows stay with their cluster in nine of ten shaken copies of the data.");
    $("summary").replaceChildren(...parts);
    const ours = D.scores.rows.find((row) => row.ours), score = (name) => ours?.values[D.scores.columns.indexOf(name)];
    const tiles = [["clusters", `${D.nClusters}`], ["mean confidence", percent(D.sure.mean)]];
    for (const [name, title] of [["ari", "agreement (ARI)"], ["accuracy", "accuracy"]]) {
      if (typeof score(name) === "number") tiles.push([title, score(name).toFixed(3)]);
    }
    $("tiles").replaceChildren(...tiles.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  }

  function fillTexts() {
    maps.forEach((map, m) => {
      $(`map-${m}-title`).textContent = map.title;
      const part = nShown < D.nRows ? `A sample of ${nShown.toLocaleString("en")} of ${count(D.nRows, "row")}. ` : "";
      $(`map-${m}-how`).textContent = `${part}Placed by ${map.how}.`;
    });
    const symbol = (shape, text) => {
      const span = make("span");
      span.innerHTML = `<svg width="14" height="14" viewBox="-7 -7 14 14" aria-hidden="true">${shape}</svg>`;
      span.append(text);
      return span;
    };
    const dot = `<circle r="4.2" fill="currentColor"/>`;
    $("symbols").replaceChildren(symbol(dot, "row"),
      ...(D.labelled ? [symbol(`${dot}<circle r="5.6" fill="none" stroke="currentColor" stroke-width="1.6"/>`, "row whose label was given")] : []),
      ...(D.classes.some((c) => c.withheld) ? [symbol(`<path d="M0-6L6 0 0 6-6 0z" fill="currentColor"/>`, "row of a class that was never labelled")] : []));
    $("snippet").textContent = D.howToLoad;
    $("facts").replaceChildren(...D.facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
    $("facts-section").hidden = !D.facts.length;
  }

  // ---------------------------------------------------------------------------------------------------- the controls

  function say({ cut, k }) {
    const guarded = cut.guard > 1 ? ` of at least ${count(cut.guard, "row")}` : "";
    $("say").classList.toggle("warn", state.k > cut.highest);
    if (state.k > cut.highest) $("say").textContent = `${count(state.k, "cluster")}${guarded} cannot be reached: this forest gives at most ${cut.highest}. Showing ${k}.`;
    else if (k === D.nClusters && state.cut === chosenCut) $("say").textContent = `This is the run’s own choice: ${count(k, "cluster")}${guarded}.`;
    else $("say").textContent = `${count(k, "cluster")}${guarded}, cut from the same forest; the run chose ${D.nClusters}${D.guard > 1 ? ` of at least ${D.guard}` : ""}.`;
    $("k").value = state.k;
    $("k-value").textContent = k === state.k ? `${k}` : `${state.k} → ${k}`;
    $("k").setAttribute("aria-valuetext", `${count(k, "cluster")}`);
    $("guard").value = state.cut;
    $("guard-value").textContent = count(cut.guard, "row");
    $("guard").setAttribute("aria-valuetext", `at least ${count(cut.guard, "row")}`);
    $("reset").disabled = state.k === D.nClusters && state.cut === chosenCut;
  }

  let now = null; // the clustering on the page
  function update() {
    forgetRow();
    now = clustering();
    now.clusters = describe(now);
    say(now);
    drawMaps(now);
    drawClusters(now);
    drawDendrogram(now);
  }
  let waiting = false;
  function schedule() { // many slider events, one drawing
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; update(); });
  }

  function listenToControls() {
    [$("k").min, $("k").max] = D.slider;
    $("guard").max = D.cuts.length - 1;
    $("k").addEventListener("input", () => { state.k = Number($("k").value); schedule(); });
    $("guard").addEventListener("input", () => { state.cut = Number($("guard").value); schedule(); });
    $("edges").addEventListener("change", () => { state.edges = $("edges").checked; schedule(); });
    $("reset").addEventListener("click", () => { Object.assign(state, { k: D.nClusters, cut: chosenCut, only: null }); schedule(); });
    const ways = [["cluster", "Cluster"], D.labelled && ["known", "Label"], rows.truth && ["truth", "Truth"], ["confidence", "Confidence"]].filter(Boolean);
    $("colour-by").append(...ways.map(([value, text]) => make("label", {}, make("input", {
      type: "radio", name: "colour-by", value, checked: value === state.colourBy,
      onchange: () => { Object.assign(state, { colourBy: value, only: null }); schedule(); },
    }), text)));
    $("copy").addEventListener("click", copySnippet);
  }

  async function copySnippet() {
    try {
      await navigator.clipboard.writeText(D.howToLoad);
    } catch { // not allowed for every local file
      getSelection().selectAllChildren($("snippet"));
      document.execCommand("copy");
    }
    $("copy").textContent = "Copied";
    setTimeout(() => { $("copy").textContent = "Copy"; }, 1500);
  }

  const dark = matchMedia("(prefers-color-scheme: dark)");
  function setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    $("theme").textContent = theme === "dark" ? "Light page" : "Dark page";
  }
  function drawAll() { update(); drawMatrix(); drawCurves(); }

  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => { setTheme(dark.matches ? "dark" : "light"); drawAll(); });
  $("theme").addEventListener("click", () => {
    setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    drawAll();
  });
  listenToControls();
  fillHead();
  fillTexts();
  fillScores();
  drawAll();
  listenToMaps();
  listenToMatrix();
  document.documentElement.dataset.ready = "true";
})();
