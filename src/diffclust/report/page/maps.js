// The two maps, what is under the pointer, and the legend.

const sheet = D.images;
if (sheet) document.head.append(make("style", {}, `.picture { background-image: url("${sheet.url}"); }`));

function picture(i, side) {
  const zoom = side / Math.max(sheet.width, sheet.height);
  const [column, line] = [i % sheet.columns, Math.floor(i / sheet.columns)];
  const lines = Math.ceil(nShown / sheet.columns);
  const [width, height] = [sheet.width * zoom, sheet.height * zoom];
  return make("span", {
    class: "picture",
    role: "img",
    "aria-label": `row ${rows.row[i]}`,
    style: {
      width: `${width}px`,
      height: `${height}px`,
      flex: "none",
      backgroundSize: `${width * sheet.columns}px ${height * lines}px`,
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
const hideTip = () => {
  $("tip").hidden = true;
};
addEventListener("scroll", hideTip, { passive: true });

function rowFacts(i, { label, clusters }) {
  const facts = [
    ["row", rowName(i)],
    ["cluster", clusters.get(label[i]).name],
  ];
  facts.push(["label", rows.known[i] < 0 ? "not given" : D.classes[rows.known[i]].name]);
  if (rows.truth && rows.truth[i] >= 0) {
    facts.push(["truth", D.classes[rows.truth[i]].name + (isWithheld(i) ? " (never labelled)" : "")]);
  }
  for (const { name, groups, code } of D.groupings.slice(0, 6)) facts.push([name, groups[code[i]]]);
  facts.push(["confidence", percent(rows.confidence[i])]);
  return facts;
}

const touch = matchMedia("(pointer: coarse)").matches;
const CONFIG = {
  responsive: true,
  displaylogo: false,
  displayModeBar: touch ? false : "hover",
  scrollZoom: false,
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
};

function layout(more = {}) {
  const axis = {
    gridcolor: css("--line"),
    zeroline: false,
    linecolor: css("--line"),
    tickcolor: css("--line"),
    fixedrange: touch,
    automargin: true,
  };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    showlegend: false,
    autosize: true,
    font: { family: "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", size: 12, color: css("--soft") },
    margin: { l: 8, r: 8, t: 8, b: 8 },
    hovermode: "closest",
    dragmode: touch ? false : "pan",
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--faint"), activecolor: css("--accent") },
    ...more,
    xaxis: { ...axis, ...more.xaxis },
    yaxis: { ...axis, ...more.yaxis },
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
  if (state.column !== null) {
    const { groups: names, sizes, code } = D.groupings[state.column];
    const groups = names.map((name, id) => ({ id, name, size: sizes[id], colour: colourOf(id) }));
    return { group: Array.from(code), groups };
  }
  const groups = [...current.clusters].map(([id, { name, size }]) => ({ id, name, size, colour: colourOf(id) }));
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
  return {
    type: "scatter",
    mode: "lines",
    hoverinfo: "skip",
    ...path,
    line: { color: css("--edge"), width: fixed ? 0.7 : 1.2, dash: fixed ? "dot" : "solid" },
  };
}

function markers(group, groups) {
  const colour = new Map(groups.map((g) => [g.id, g.colour])),
    faint = css("--faint"),
    ink = css("--ink");
  const more = nShown > 800 ? 0 : nShown > 200 ? 1.5 : 4,
    scale = innerWidth < 720 ? 0.75 : 1;
  const dim = (i) => state.only !== null && group[i] !== state.only;
  const marker = {
    color: shownRows.map((i) => colour.get(group[i]) ?? faint),
    symbol: shownRows.map((i) => (isWithheld(i) ? "diamond" : "circle")),
    size: shownRows.map(
      (i) => scale * ((group[i] < 0 ? 4.5 : isWithheld(i) ? 7.5 : 6) + (rows.known[i] >= 0 ? 2 : 0) + more),
    ),
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
    const at = middles(map, group, groups)
      .map((i, g) => [i, groups[g]])
      .filter(([i]) => i !== null);
    const hidden = { showgrid: false, showticklabels: false, ticks: "", showline: false, range: [-1.07, 1.07] };
    Plotly.react(
      $(`map-${m}`),
      [
        lines(map, current.label, true),
        lines(map, current.label, false),
        { type: "scatter", mode: "markers", x: map.x, y: map.y, marker, hoverinfo: "none" },
        {
          type: "scatter",
          mode: "text",
          hoverinfo: "skip",
          x: at.map(([i]) => map.x[i]),
          y: at.map(([i]) => map.y[i]),
          text: at.map(([, g]) => plain(short(g.name, 24))), // the legend has all of it
          textfont: { size: 15, weight: 700, color: css("--ink") },
        },
      ],
      layout({
        xaxis: hidden,
        yaxis: { ...hidden, scaleanchor: "x" },
        margin: { l: 0, r: 0, t: 0, b: 0 },
        uirevision: "map",
      }),
      CONFIG,
    );
  });
  drawLegend(groups, group);
}
const POINTS = 2; // the trace above that has the rows

function drawLegend(groups, group) {
  const legend = $("legend");
  if (state.colourBy === "confidence") {
    const gradient = `linear-gradient(90deg, ${CIVIDIS.join(", ")})`;
    legend.replaceChildren(
      make("span", {}, "0 %"),
      make("span", { class: "scale", style: { background: gradient, alignSelf: "center" } }),
      make("span", {}, "100 % confidence"),
    );
    return;
  }
  const chips = groups.map((g) =>
    make(
      "button",
      {
        type: "button",
        class: "chip",
        "aria-pressed": `${state.only === g.id}`,
        "data-group": g.id,
        onclick: () => {
          state.only = state.only === g.id ? null : g.id;
          schedule();
          legendFocus = g.id;
        },
      },
      make("span", { class: `swatch${g.withheld ? " withheld" : ""}`, style: { background: g.colour } }),
      make("b", {}, g.name),
      make("small", {}, count(g.size, "row")),
    ),
  );
  if (group.some((g) => g < 0))
    chips.push(
      make(
        "span",
        { class: "chip" },
        make("span", { class: "swatch", style: { background: css("--faint") } }),
        make("b", {}, "not given"),
      ),
    );
  legend.replaceChildren(...chips);
  if (legendFocus !== null) legend.querySelector(`[data-group="${legendFocus}"]`)?.focus();
  legendFocus = null;
}
let legendFocus = null; // the chip that was pressed is drawn again, and must not lose the keyboard

function ring(m, i) {
  const plot = $(`map-${m}`),
    { xaxis, yaxis } = plot._fullLayout;
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
      showTip(event, sheet ? [picture(i, 84)] : [], rowFacts(i, now));
      maps.forEach((_, other) => ring(other, i));
    };
    const plot = $(`map-${m}`);
    plot.on("plotly_hover", show);
    plot.on("plotly_click", show);
    plot.on("plotly_unhover", forgetRow);
  });
}
