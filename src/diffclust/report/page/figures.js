// The table of clusters, the dendrogram, the connectivity matrix, the numbers of clusters, the reliability, the curves.

/** A cluster in a table: its colour and its name. */
function clusterCell(number, name) {
  const swatch = make("span", { class: "swatch", style: { background: colourOf(number) } });
  return make("td", {}, make("span", { class: "tag" }, swatch, name));
}

const axisTitle = (text) => ({ text, font: { size: 12 } });

/** Draws a figure that cannot be moved. */
function draw(id, traces, more) {
  Plotly.react($(id), traces, layout({ dragmode: false, ...more }), { ...CONFIG, displayModeBar: false });
}

function drawClusters({ clusters, label }) {
  const columns = [
    "Cluster",
    "Rows",
    "Confidence",
    "Labels given",
    D.rows.truth && "True classes",
    sheet && "Surest rows | least sure",
  ].filter(Boolean);
  const members = new Map([...clusters.keys()].map((number) => [number, []]));
  shownRows.forEach((i) => members.get(label[i]).push(i));
  const body = [...clusters].map(([number, cluster]) => {
    const sure = cluster.confidence / cluster.size;
    return make(
      "tr",
      {},
      clusterCell(number, cluster.name),
      make("td", { class: "size" }, cluster.size.toLocaleString("en")),
      make(
        "td",
        { class: "wide" },
        make(
          "div",
          { class: "bar" },
          make("span", {}, make("i", { style: { width: `${100 * sure}%` } })),
          make("b", {}, percent(sure)),
        ),
      ),
      make(
        "td",
        { class: "wide inside", "data-name": "Labels given" },
        ...inside(cluster.known, D.labelled ? "none: a new group" : "none"),
      ),
      D.rows.truth &&
        make("td", { class: "wide inside", "data-name": "True classes" }, ...inside(cluster.truth, "unknown")),
      sheet && make("td", { class: "wide" }, examples(members.get(number))),
    );
  });
  fillTable("clusters", columns, body);
  const chosen = state.k === D.nClusters && state.cut === chosenCut;
  $("clusters-note").textContent = chosen
    ? ""
    : "Sizes and classes are those of the clusters shown; confidence was measured for the run’s own choice.";
}

/** The columns that tell the run's own clusters apart, and their typical rows. */
function fillDescribed() {
  const some = D.described.filter(({ telling }) => telling.length);
  $("described-section").hidden = !some.length;
  const cell = (name, parts) => make("td", { class: "wide inside", "data-name": name }, ...(parts.length ? parts : ["–"]));
  const column = ([name, values]) => make("div", {}, make("b", {}, name), make("em", {}, ` ${values}`));
  const titles = ["Cluster", "What tells it apart", "Typical rows"];
  const body = D.described.map(({ cluster, telling, typical }) => {
    const examples = typical.map((name) => make("div", {}, name));
    const own = clusterCell(cluster, ownClusters.get(cluster)?.name ?? `${cluster}`);
    return make("tr", {}, own, cell(titles[1], telling.map(column)), cell(titles[2], examples));
  });
  fillTable("described", titles, body);
}

/** "7 ×12, 1 ×2", the most frequent first. */
function inside(classes, nothing) {
  if (!classes.size) return [make("em", {}, nothing)];
  const sorted = [...classes].sort((a, b) => b[1] - a[1]);
  const parts = sorted
    .slice(0, 4)
    .flatMap(([code, n], position) => [
      position ? ", " : "",
      make("b", { style: { fontWeight: position ? 400 : 600 } }, D.classes[code].name),
      make("em", {}, ` ×${n.toLocaleString("en")}`),
    ]);
  return sorted.length > 4 ? [...parts, make("em", {}, `, ${sorted.length - 4} more`)] : parts;
}

function examples(members) {
  const sorted = [...members].sort((a, b) => rows.confidence[b] - rows.confidence[a]);
  const [sure, unsure] = [sorted.slice(0, 5), sorted.slice(5).slice(-3)];
  return make(
    "div",
    { class: "thumbs" },
    ...sure.map((i) => picture(i, 28)),
    unsure.length ? make("hr") : null,
    ...unsure.map((i) => picture(i, 28)),
  );
}

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
    else {
      node.parts.forEach(place);
      node.x = (node.parts[0].x + node.parts[1].x) / 2;
    }
  };
  const roots = [...top.values()].sort((a, b) => b.size - a.size);
  roots.forEach(place);
  return { joins, leaves, roots };
}

/** What to draw of a tree that is cut at k: lines by colour, a tag on top of each cluster, the level of the cut. */
function cutTree({ cut, k, number }) {
  const { joins, leaves, roots } = (cut.tree ??= joinTree(cut));
  const nCut = k - cut.first;
  const heights = joins.map((join) => join.height);
  const low = Math.min(0, ...heights);
  const high = Math.max(...heights, low + 1e-9);
  const base = low < 0 ? low - 0.1 * (high - low) : 0;
  const bottom = (node) => (node.leaf ? base : node.height);
  const isCut = (node) => !node.leaf && node.split < nCut;
  const paths = new Map();
  for (const join of joins) {
    const colour = isCut(join) ? css("--faint") : colourOf(number[join.id]);
    if (!paths.has(colour)) paths.set(colour, { x: [], y: [] });
    const [a, b] = join.parts;
    paths.get(colour).x.push(a.x, a.x, b.x, b.x, null);
    paths.get(colour).y.push(bottom(a), join.height, join.height, bottom(b), null);
  }
  const tops = [...roots, ...joins.filter(isCut).flatMap((join) => join.parts)].filter((node) => !isCut(node));
  const tags = tops.map((node) => ({ x: node.x, y: bottom(node), id: number[node.id] }));
  // Joins are in the reverse order of splits.
  const uncut = heights[joins.length - 1 - nCut] ?? base;
  const above = heights[joins.length - nCut] ?? high + 0.05 * (high - base);
  return { paths, tags, leaves, level: (uncut + above) / 2, range: [base, high + 0.1 * (high - base)] };
}

function drawDendrogram(current) {
  const { paths, tags, leaves, level, range } = cutTree(current);
  const traces = [...paths].map(([color, path]) => ({
    type: "scatter",
    mode: "lines",
    ...path,
    hoverinfo: "skip",
    line: { color, width: 2 },
  }));
  traces.push({
    type: "scatter",
    mode: "markers+text",
    x: tags.map((tag) => tag.x),
    y: tags.map((tag) => tag.y),
    text: tags.map((tag) => plain(short(current.clusters.get(tag.id).name))),
    textposition: "top center",
    textfont: { color: css("--ink"), size: 12 },
    marker: { color: tags.map((tag) => colourOf(tag.id)), size: 9 },
    cliponaxis: false,
    hoverinfo: "skip",
  });
  const axis = (text) => ({ fixedrange: true, title: axisTitle(text) });
  const xaxis = {
    ...axis("rows in each group"),
    showgrid: false,
    tickvals: leaves.length > 60 ? [] : leaves.map((leaf) => leaf.x),
    ticktext: leaves.map((leaf) => leaf.size.toLocaleString("en")),
    tickangle: -90,
    tickfont: { size: innerWidth < 720 ? 8 : 10 },
    range: [-0.8, leaves.length - 0.2],
  };
  const yaxis = { ...axis("dissimilarity where they join"), range };
  const line = { color: css("--ink"), width: 1.4, dash: "dash" };
  const cutLine = { type: "line", xref: "paper", x0: 0, x1: 1, y0: level, y1: level, line };
  const shapes = leaves.length > 1 ? [cutLine] : [];
  draw("dendrogram", traces, { xaxis, yaxis, margin: { l: 50, r: 8, t: 12, b: 50 }, shapes });
}

const matrix = {
  shown: unpack(D.matrix.shown),
  percent: unpack(D.matrix.percent),
  cluster: unpack(D.matrix.cluster),
};

function drawMatrix() {
  const n = matrix.shown.length;
  const z = Array.from({ length: n }, (_, i) => Array.from(matrix.percent.subarray(i * n, (i + 1) * n)));
  const starts = shownRows.slice(0, n).filter((i) => i === 0 || matrix.cluster[i] !== matrix.cluster[i - 1]);
  const ticks = starts.map((start, c) => (start + (starts[c + 1] ?? n) - 1) / 2);
  const room = (c) => (starts[c + 1] ?? n) - starts[c] > 0.03 * n; // for the cluster's name
  const names = starts.map((i, c) => (room(c) ? short(ownClusters.get(matrix.cluster[i]).name) : ""));
  const wide = 14 + 7 * Math.max(...names.map((name) => name.length)); // pixels, about
  const turned = wide * names.length > 300;
  const axis = {
    tickvals: ticks,
    ticktext: names.map(plain),
    tickangle: 0,
    showgrid: false,
    ticks: "",
    fixedrange: true,
    constrain: "domain",
    range: [-0.5, n - 0.5],
    automargin: false,
  };
  const line = (x0, x1, y0, y1) => ({
    type: "line",
    x0,
    x1,
    y0,
    y1,
    line: { color: "rgba(255,255,255,.55)", width: 1 },
  });
  const trace = {
    type: "heatmap",
    z,
    zmin: 0,
    zmax: 100,
    colorscale: cividis,
    hoverinfo: "none",
    zsmooth: false,
    colorbar: { thickness: 10, outlinewidth: 0, len: 0.9, ticksuffix: " %", tickfont: { size: 11 } },
  };
  draw("matrix", [trace], {
    xaxis: { ...axis, tickangle: turned ? -90 : 0, title: axisTitle("cluster") },
    yaxis: { ...axis, range: [n - 0.5, -0.5], scaleanchor: "x" },
    margin: { l: Math.max(30, wide), r: 4, t: 8, b: turned ? 30 + wide : 40 },
    shapes: starts
      .slice(1)
      .flatMap((s) => [line(s - 0.5, s - 0.5, -0.5, n - 0.5), line(-0.5, n - 0.5, s - 0.5, s - 0.5)]),
  });
  $("matrix-note").textContent =
    `${count(n, "row")} of the map, the run’s ${count(D.nClusters, "cluster")}, ${D.matrix.draws} draws of noise of scale ${D.matrix.epsilon}.`;
}

function listenToMatrix() {
  const plot = $("matrix");
  plot.on("plotly_hover", ({ points: [point], event }) => {
    const [i, j] = [point.y, point.x].map((position) => matrix.shown[position]);
    const pictures = sheet ? [picture(i, 52), picture(j, 52)] : [];
    showTip(event, pictures, [
      ["rows", `${rowName(i)} and ${rowName(j)}`],
      ["clusters", `${matrix.cluster[point.y]} and ${matrix.cluster[point.x]}`],
      ["together", `${point.z} % of draws`],
    ]);
  });
  plot.on("plotly_unhover", hideTip);
}

/** How well hidden classes were found with each number of clusters; the interval is shaded. */
function drawNumbers() {
  const candidates = D.made?.candidates ?? [];
  $("numbers-part").hidden = !candidates.length;
  if (!candidates.length) return;
  const [low, high] = D.made.interval;
  $("numbers-note").textContent =
    `Some labelled classes were hidden, and all labels were compared with the clusters. This curve, and the share of ` +
    `the rows that have a label near them, make ${low} to ${high} clusters likely (shaded). The run took ` +
    `${D.nClusters} (dashed).`;
  const edge = { type: "line", yref: "paper", y0: 0, y1: 1, x0: D.nClusters, x1: D.nClusters };
  const trace = {
    type: "scatter",
    mode: "lines+markers",
    x: candidates.map(([k]) => k),
    y: candidates.map(([, score]) => score),
    line: { color: css("--accent"), width: 2 },
    marker: { size: 7 },
    hovertemplate: "%{x} clusters: ARI %{y:.3f}<extra></extra>",
  };
  const interval = { type: "rect", yref: "paper", y0: 0, y1: 1, x0: low - 0.5, x1: high + 0.5 };
  draw("numbers", [trace], {
    xaxis: { showgrid: false, fixedrange: true, title: axisTitle("clusters") },
    yaxis: { nticks: 5, fixedrange: true, title: axisTitle("ARI with all labels") },
    margin: { l: 56, r: 10, t: 8, b: 40 },
    shapes: [
      { ...interval, fillcolor: css("--accent"), opacity: 0.15, line: { width: 0 } },
      { ...edge, line: { color: css("--ink"), width: 1.4, dash: "dash" } },
    ],
  });
}

/** The confidence of scored rows against the share of them that is right. */
function drawReliability() {
  $("reliability-section").hidden = !D.reliability;
  if (!D.reliability) return;
  const { bins, rows: n, expected_calibration_error: error } = D.reliability;
  $("reliability-note").textContent =
    `${count(n, "row")} with a known class that nobody was told, grouped by confidence. On the dashed line, of the rows ` +
    `with confidence 80 % four in five are right; below it, the confidence is too high. Numbers are rows. ` +
    `Expected calibration error: ${error.toFixed(3)}.`;
  const axis = (text) => ({
    range: [-0.04, 1.08],
    tickvals: [0, 0.2, 0.4, 0.6, 0.8, 1],
    tickformat: ".0%",
    fixedrange: true,
    title: axisTitle(text),
  });
  const trace = {
    type: "scatter",
    mode: "markers+text", // no lines: they would weigh a bin of one row as much as one of a thousand
    x: bins.map((bin) => bin.confidence),
    y: bins.map((bin) => bin.right),
    text: bins.map((bin) => bin.rows.toLocaleString("en")),
    textposition: bins.map((bin) => (bin.right < bin.confidence ? "bottom center" : "top center")),
    textfont: { color: css("--ink"), size: 12 },
    marker: { color: css("--accent"), size: bins.map((bin) => 6 + 18 * Math.sqrt(bin.rows / n)), opacity: 1 },
    cliponaxis: false,
    hovertemplate: "confidence %{x:.0%}: %{y:.0%} right, %{text} rows<extra></extra>",
  };
  const diagonal = { type: "line", x0: 0, y0: 0, x1: 1, y1: 1 };
  draw("reliability", [trace], {
    xaxis: axis("mean confidence"),
    yaxis: axis("share of rows that are right"),
    margin: { l: 64, r: 10, t: 12, b: 46 },
    shapes: [{ ...diagonal, line: { color: css("--faint"), width: 1.4, dash: "dash" } }],
  });
}

function drawCurves() {
  $("curves-section").hidden = !D.curves.length;
  const plot = (name, c) =>
    make("div", { class: "plot", id: `curve-${c}`, role: "img", "aria-label": `Curve: ${name}` });
  if (!$("curves").children.length)
    $("curves").append(...D.curves.map(({ name }, c) => make("div", {}, make("h3", {}, name), plot(name, c))));
  D.curves.forEach(({ x, y }, c) => {
    const trace = {
      type: "scatter",
      mode: x.length > 60 ? "lines" : "lines+markers",
      x,
      y,
      line: { color: css("--accent"), width: 2 },
      marker: { size: 5 },
      hovertemplate: "step %{x}: %{y:.4g}<extra></extra>",
    };
    draw(`curve-${c}`, [trace], {
      xaxis: { showgrid: false, title: axisTitle("step") },
      yaxis: { nticks: 5 },
      margin: { l: 44, r: 10, t: 8, b: 36 },
      hovermode: "x",
    });
  });
}
