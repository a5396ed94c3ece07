// Texts, scores and controls; `update` draws everything that follows from the data and the controls.

function fillScores() {
  const { columns, rows: methods } = D.scores;
  if (!methods.length) {
    $("scores-section").hidden = true;
    return;
  }
  if (D.scoredRows !== null)
    $("scored").textContent = `Scored on ${count(D.scoredRows, "row")} whose labels nobody was told.`;
  const bestValues = columns.map(({ best }, c) => {
    const values = methods.map((row) => row.values[c]).filter((value) => value !== null);
    return values.length ? Math[best](...values) : null;
  });
  const cell = (value, c) => {
    const name = value !== null && value === bestValues[c] ? "number best" : "number";
    return make("td", { class: name, "data-name": columns[c].title }, value === null ? "–" : value.toFixed(3));
  };
  const body = methods.map(({ method, ours, values }) =>
    make("tr", { class: ours ? "ours" : null }, make("td", {}, method), ...values.map(cell)),
  );
  fillTable("scores", ["Method", ...columns.map(({ title }) => title)], body, 1);
}

function fillHead() {
  const withheld = D.classes.filter((c) => c.withheld),
    bold = (text) => make("b", {}, text);
  const parts = [bold(count(D.nRows, "row")), " in ", bold(count(D.nClusters, "cluster")), ". "];
  if (D.labelled) parts.push("The labels of ", bold(count(D.labelled, "row")), " were given");
  else parts.push("No labels were given");
  if (withheld.length)
    parts.push(
      "; ",
      bold(count(withheld.length, "class", "classes")),
      withheld.length === 1 ? " was never labelled (" : " were never labelled (",
      withheld.map((c) => c.name).join(", "),
      ")",
    );
  parts.push(
    ". ",
    bold(percent(D.sure.share)),
    " of the rows have a confidence of at least 90 %.",
  );
  $("summary").replaceChildren(...parts);
  const ours = D.scores.rows.find((row) => row.ours),
    score = (name) => ours?.values[D.scores.columns.findIndex((column) => column.name === name)];
  const tiles = [
    ["clusters", `${D.nClusters}`],
    ["mean confidence", percent(D.sure.mean)],
  ];
  for (const [name, title] of [
    ["ari", "agreement (ARI)"],
    ["accuracy", "accuracy"],
  ]) {
    const rows = D.scoredRows === null ? "" : `, ${count(D.scoredRows, "row")}`;
    if (typeof score(name) === "number") tiles.push([title + rows, score(name).toFixed(3)]);
  }
  if (typeof D.made?.newClasses === "number") tiles.push(["ARI with classes hidden", D.made.newClasses.toFixed(3)]);
  $("headline").replaceChildren(
    ...D.headline.map((sentence) => make("li", {}, sentence)),
    ...D.warnings.map((sentence) => make("li", { class: "warn" }, sentence)),
  );
  $("headline").hidden = !D.headline.length && !D.warnings.length;
  $("tiles").replaceChildren(
    ...tiles.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))),
  );
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
  $("symbols").replaceChildren(
    symbol(dot, "row"),
    ...(D.labelled
      ? [
          symbol(
            `${dot}<circle r="5.6" fill="none" stroke="currentColor" stroke-width="1.6"/>`,
            "row whose label was given",
          ),
        ]
      : []),
    ...(D.classes.some((c) => c.withheld)
      ? [symbol(`<path d="M0-6L6 0 0 6-6 0z" fill="currentColor"/>`, "row of a class that was never labelled")]
      : []),
  );
  $("snippet").textContent = D.howToLoad;
  $("facts").replaceChildren(
    ...D.facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))),
  );
  $("facts-section").hidden = !D.facts.length;
  $("reading").replaceChildren(...D.reading.map((sentence) => make("li", {}, sentence)));
  $("reading-section").hidden = !D.reading.length;
}

/** Which cut was taken, and why. */
function fillMade() {
  $("made-section").hidden = !D.made;
  if (!D.made) return;
  const { cut, cuts, calibrated, oneClass } = D.made;
  const hidden = cuts.some(({ score }) => score !== null);
  const toldApart = cuts.some(({ novelty }) => novelty !== null);
  $("calibrated").textContent = calibrated
    ? "It was calibrated on labels that were hidden from a shorter training."
    : "How sure it is in the mean follows from how far other cuts find the same clusters.";
  const why = {
    vote:
      "The embedding was cut in several ways. Every cluster is a labelled class, so all of them voted, and so did " +
      "classifiers of the input. A vote counts more if it finds hidden labels again more often. ",
    pairs:
      "The clusters come from a model of the rows and the pairs together, or labels with weights. Other cuts were made " +
      "for comparison. ",
  };
  $("made").textContent = !cuts.length
    ? `The embedding was cut in one way: ${cut}. No other was compared.`
    : (why[cut] ??
        `The embedding was cut in several ways. Taken was ${cut}, for which most speaks: ` +
          `${hidden ? "it finds hidden labels again, " : ""}it agrees with the other cuts` +
          `${toldApart ? ", and it tells new rows from known ones as trees do that look where labels are" : ""}. `) +
      `${hidden ? "" : "No labels could be hidden. "}` +
      (hidden && oneClass
        ? "The first column is the share of rows with hidden labels in the cluster of their class, less that of rows " +
          "without labels. The second one is an ARI."
        : "1 is perfect (ARI).") +
      (toldApart ? " The last column is the share of rows that are among new or known clusters as expected." : "");
  const cell = (value) => make("td", { class: "number" }, value === null ? "–" : value.toFixed(3));
  const titles = ["Cut", hidden && "Hidden labels", "Agreement", toldApart && "New or known"].filter(Boolean);
  const body = cuts.map(({ name, score, agreement, novelty }) => {
    const values = [...(hidden ? [score] : []), agreement, ...(toldApart ? [novelty] : [])];
    return make("tr", { class: name === cut ? "taken" : null }, make("td", {}, name), ...values.map(cell));
  });
  $("cuts").hidden = !cuts.length;
  fillTable("cuts", titles, body, 1);
}

function say({ cut, k }) {
  const guarded = cut.guard > 1 ? ` of at least ${count(cut.guard, "row")}` : "";
  $("say").classList.toggle("warn", state.k > cut.highest);
  if (state.k > cut.highest)
    $("say").textContent =
      `${count(state.k, "cluster")}${guarded} cannot be reached: this forest gives at most ${cut.highest}. Showing ${k}.`;
  else if (k === D.nClusters && state.cut === chosenCut)
    $("say").textContent = `This is the run’s own choice: ${count(k, "cluster")}${guarded}.`;
  else
    $("say").textContent =
      `${count(k, "cluster")}${guarded}, cut from the same forest; the run chose ${D.nClusters}${D.guard > 1 ? ` of at least ${D.guard}` : ""}.`;
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
function schedule() {
  // many slider events, one drawing
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    update();
  });
}

function listenToControls() {
  [$("k").min, $("k").max] = D.slider;
  $("guard").max = D.cuts.length - 1;
  $("k").addEventListener("input", () => {
    state.k = Number($("k").value);
    schedule();
  });
  $("guard").addEventListener("input", () => {
    state.cut = Number($("guard").value);
    schedule();
  });
  $("edges").addEventListener("change", () => {
    state.edges = $("edges").checked;
    schedule();
  });
  $("reset").addEventListener("click", () => {
    Object.assign(state, { k: D.nClusters, cut: chosenCut, only: null });
    schedule();
  });
  const ways = [
    ["cluster", "Cluster"],
    D.labelled && ["known", "Label"],
    rows.truth && ["truth", "Truth"],
    ["confidence", "Confidence"],
  ].filter(Boolean);
  $("colour-by").append(
    ...ways.map(([value, text]) =>
      make(
        "label",
        {},
        make("input", {
          type: "radio",
          name: "colour-by",
          value,
          checked: value === state.colourBy,
          onchange: () => {
            Object.assign(state, { colourBy: value, column: null, only: null });
            $("colour-column").value = "";
            schedule();
          },
        }),
        text,
      ),
    ),
  );
  $("colour-column").hidden = !D.groupings.length;
  $("colour-column").append(
    make("option", { value: "" }, "a column …"),
    ...D.groupings.map(({ name }, position) => make("option", { value: position }, name)),
  );
  $("colour-column").addEventListener("change", ({ target: { value } }) => {
    const column = value === "" ? null : Number(value);
    Object.assign(state, { colourBy: column === null ? "cluster" : "column", column, only: null });
    for (const input of document.getElementsByName("colour-by")) input.checked = input.value === state.colourBy;
    schedule();
  });
  $("copy").addEventListener("click", copySnippet);
}

async function copySnippet() {
  try {
    await navigator.clipboard.writeText(D.howToLoad);
  } catch {
    // not allowed for every local file
    getSelection().selectAllChildren($("snippet"));
    document.execCommand("copy");
  }
  $("copy").textContent = "Copied";
  setTimeout(() => {
    $("copy").textContent = "Copy";
  }, 1500);
}

const dark = matchMedia("(prefers-color-scheme: dark)");
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = theme === "dark" ? "Light page" : "Dark page";
}
function drawAll() {
  update();
  drawMatrix();
  drawNumbers();
  drawReliability();
  drawCurves();
}

setTheme(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => {
  setTheme(dark.matches ? "dark" : "light");
  drawAll();
});
$("theme").addEventListener("click", () => {
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  drawAll();
});
listenToControls();
fillHead();
fillTexts();
fillScores();
fillMade();
fillDescribed();
fillAsked();
drawAll();
listenToMaps();
listenToMatrix();
document.documentElement.dataset.ready = "true";
