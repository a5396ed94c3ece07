/* What payload.py made, as arrays; the clustering that the controls ask for; colours and small tools.

   The scripts of this folder become one module, in the order data, maps, figures, ask, main. `D` is the data, `state` what the
   controls say. A cluster keeps its number, and so its colour, from one k to the next. */

const D = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

/* Okabe and Ito's colours, then greedily the colour that differs most from all before it to normal and to
   colour-blind eyes, on light and on dark paper. Numbers and names stand beside them everywhere. */
// prettier-ignore
const PALETTE = [
  "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#86465b", "#a264f6", "#a5cb90",
  "#ba2d1f", "#4941cf", "#44d6d6", "#b93c8c", "#8b87d8", "#a00286", "#63b376", "#607753", "#f96e43",
  "#eabf3a", "#6e5dd8", "#6248a9", "#ff7ef6", "#5f621e", "#8abead", "#647bc8", "#e13156", "#b180fc",
  "#b2b959", "#3b7378", "#b468a0", "#c09ad2", "#7ea04a", "#b48486", "#a447b1", "#cdb7f6", "#4d9ebc",
];
const colourOf = (number) => PALETTE[(D.colours[number] ?? number) % PALETTE.length];
// prettier-ignore
const CIVIDIS = [
  "#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838",
];
const cividis = CIVIDIS.map((colour, i) => [i / (CIVIDIS.length - 1), colour]);

const ARRAYS = { i4: Int32Array, f4: Float32Array, u1: Uint8Array };
const unpack = ({ type, data }) => new ARRAYS[type](Uint8Array.from(atob(data), (c) => c.charCodeAt(0)).buffer);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const count = (value, word, words = `${word}s`) => `${value.toLocaleString("en")} ${value === 1 ? word : words}`;
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

/** Fills a table; from column `numbers` on there are numbers. */
function fillTable(id, titles, body, numbers = Infinity) {
  const heads = titles.map((title, c) => make("th", { scope: "col", class: c < numbers ? null : "number" }, title));
  $(id).replaceChildren(make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...body));
}

const rows = {
  row: unpack(D.rows.row),
  name: D.rows.name,
  confidence: unpack(D.rows.confidence),
  known: unpack(D.rows.known),
  truth: D.rows.truth && unpack(D.rows.truth),
};
const nShown = rows.row.length;
const shownRows = Array.from({ length: nShown }, (_, i) => i);
const maps = D.maps.map((map) => {
  const xy = unpack(map.xy);
  return { ...map, x: shownRows.map((i) => xy[2 * i]), y: shownRows.map((i) => xy[2 * i + 1]) };
});
const edges = unpack(D.edges),
  mustLink = unpack(D.mustLink);
for (const cut of D.cuts) cut.finest = unpack(cut.finest);
for (const grouping of D.groupings) grouping.code = unpack(grouping.code);
const chosenCut = D.cuts.findIndex((cut) => cut.guard === D.guard);
const isWithheld = (i) => rows.truth !== null && rows.truth[i] >= 0 && D.classes[rows.truth[i]].withheld;
const rowName = (i) => (rows.name ? `${rows.name[i]} (row ${rows.row[i]})` : `${rows.row[i]}`);

const state = { k: D.nClusters, cut: chosenCut, colourBy: "cluster", column: null, edges: false, only: null };

/** The clustering that the sliders ask for, as near as the hierarchy gets. */
function clustering() {
  const cut = D.cuts[state.cut];
  const k = clamp(state.k, cut.first, cut.last);
  const number = cut.size.map((_, id) => id); // of the cluster that each finest cluster is part of
  for (let t = cut.splits.length - 1; t >= k - cut.first; t--) {
    const [child, parent] = cut.splits[t];
    number.forEach((value, id) => {
      if (value === child) number[id] = parent;
    });
  }
  return { cut, k, number, label: Array.from(cut.finest, (id) => number[id]) };
}

/** Size, mean confidence, classes and name of each cluster, over all rows of the data. */
function describe({ cut, number }) {
  const clusters = new Map();
  const at = (id) => {
    if (!clusters.has(number[id]))
      clusters.set(number[id], { size: 0, confidence: 0, known: new Map(), truth: new Map() });
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
  const sorted = new Map([...clusters].sort(([a], [b]) => a - b));
  nameClusters(sorted);
  return sorted;
}

/** The classes whose labels a cluster holds, or its name in clusters.csv; without any labels and names, its number. */
function nameClusters(clusters) {
  let fresh = 0;
  const next = () => {
    do fresh++;
    while (D.names.includes(`new ${fresh}`));
    return `new ${fresh}`;
  };
  for (const [number, cluster] of clusters) {
    const held = [...cluster.known].sort((a, b) => b[1] - a[1]).map(([code]) => D.classes[code].name);
    const more = held.length > 2 ? ` + ${held.length - 2} more` : "";
    const own = () => D.names[number] ?? (D.labelled || D.names.length ? next() : `${number}`);
    cluster.name = held.slice(0, 2).join(" + ") + more || own();
  }
}
const short = (name, most = 12) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);

const ownClusters = describe(clustering()); // of the run: nobody has moved a slider yet

/** Each class gets the colour of the cluster it is most at home in, so that rows in the wrong place stand out. */
const classColours = (() => {
  const pairs = [];
  for (const [number, { known, truth }] of ownClusters) {
    for (const [code, n] of D.rows.truth ? truth : known) pairs.push([n, code, number]);
  }
  const colours = new Array(D.classes.length).fill(null);
  const taken = new Set();
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
