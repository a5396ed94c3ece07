// What to label next: rows and pairs to look at, and a button that saves the answers as a file.

const asked = D.asked;
const answers = new Map(); // key of a card -> a line of the file: { row, other, label, answer }

/** A row as a person can judge it: its picture, its name, its columns. */
function lookAt(i) {
  const facts = asked.facts[rows.row[i]] ?? [];
  return make(
    "div",
    { class: "look" },
    sheet && picture(i, 88),
    make("b", {}, `row ${rowName(i)}`),
    facts.length
      ? make("dl", {}, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]))
      : null,
  );
}

/** Buttons of which one at most is pressed; `choose` gets the text of that one, or null. */
function choices(texts, choose) {
  const group = make("div", { class: "choices", role: "group" });
  for (const text of texts) {
    const button = make("button", { type: "button", class: "quiet", "aria-pressed": "false" }, text);
    button.addEventListener("click", () => {
      const pressed = button.getAttribute("aria-pressed") !== "true";
      for (const other of group.children) other.setAttribute("aria-pressed", "false");
      button.setAttribute("aria-pressed", pressed);
      choose(pressed ? text : null);
    });
    group.append(button);
  }
  return group;
}

/** Offers a class that was typed to the other cards. */
function offer(name) {
  if (name && !asked.classes.includes(name)) $("classes").append(make("option", { value: name }));
}

function setAnswer(key, line) {
  if (line === null) answers.delete(key);
  else answers.set(key, line);
  $("save").disabled = !answers.size;
  $("answered").textContent = count(answers.size, "answer");
}

/** A card that asks for the class of a row: a button for each class, and room for a new name. */
function rowCard(key, { at, why }) {
  const [row, id] = [rows.row[at], rows.name?.[at] ?? ""];
  const set = (label) => setAnswer(key, label ? { row, id, label } : null);
  const input = make("input", { type: "text", list: "classes", placeholder: "another class", "aria-label": "Class" });
  const buttons = choices(asked.classes.slice(0, 8), (label) => {
    input.value = "";
    set(label);
  });
  input.addEventListener("input", () => {
    for (const button of buttons.children) button.setAttribute("aria-pressed", "false");
    set(input.value.trim());
  });
  input.addEventListener("change", () => offer(input.value.trim()));
  return make("article", { class: "card" }, lookAt(at), make("p", { class: "how" }, why), buttons, input);
}

function pairCard(key, { at, other, why }) {
  const line = {
    row: rows.row[at],
    id: rows.name?.[at] ?? "",
    other: rows.row[other],
    other_id: rows.name?.[other] ?? "",
  };
  const buttons = choices(["same", "different"], (answer) => setAnswer(key, answer && { ...line, answer }));
  const two = make("div", { class: "two" }, lookAt(at), lookAt(other));
  return make("article", { class: "card" }, two, make("p", { class: "how" }, why), buttons);
}

/** A cell of a .csv file; a quote stands before what a spreadsheet would take for a formula, as in files.py. */
function csvCell(value) {
  let text = `${value ?? ""}`;
  const number = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
  if (/^[=+\-@\t\r\n＝＋－＠]/.test(text) && !number.test(text)) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

function answersCsv() {
  const columns = ["row", "id", "other", "other_id", "label", "answer"].filter(
    (name) => rows.name || !name.endsWith("id"),
  );
  const lines = [...answers.values()].map((line) => columns.map((name) => csvCell(line[name])).join(","));
  return [columns.join(","), ...lines, ""].join("\n");
}

function saveAnswers() {
  const url = URL.createObjectURL(new Blob([answersCsv()], { type: "text/csv" }));
  make("a", { href: url, download: "answers.csv" }).click();
  URL.revokeObjectURL(url);
  $("go-on").hidden = false;
}

function fillAsked() {
  const kinds = [
    ["rows", rowCard],
    ["pairs", pairCard],
    ["suspects", rowCard],
  ];
  for (const [kind, card] of kinds) {
    $(`ask-${kind}`).replaceChildren(...asked[kind].map((question, i) => card(`${kind} ${i}`, question)));
    $(`ask-${kind}-part`).hidden = !asked[kind].length;
  }
  $("ask-section").hidden = !kinds.some(([kind]) => asked[kind].length);
  $("suspects-title").textContent =
    asked.suspects.length === 1 ? "This label looks wrong" : `These ${asked.suspects.length} labels look wrong`;
  $("classes").replaceChildren(...asked.classes.map((name) => make("option", { value: name })));
  $("go-on").querySelector("code").textContent = asked.command;
  $("save").addEventListener("click", saveAnswers);
}
