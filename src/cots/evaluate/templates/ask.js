"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const NONE = "none of these", UNKNOWN = "?";
const labels = data.rows.map(() => "");
let at = 0, saved = true;

function remember() {
  try { localStorage.setItem(data.key, JSON.stringify({ labels, saved })); } catch { /* a browser without storage */ }
}

function recall() {
  let kept = null;
  try { kept = JSON.parse(localStorage.getItem(data.key)); } catch { return; }
  if (!Array.isArray(kept?.labels) || kept.labels.length !== labels.length) return;
  kept.labels.forEach((label, row) => { if (typeof label === "string") labels[row] = label; });
  saved = kept.saved === true;
}

function button(name, key) {
  const one = document.createElement("button");
  one.type = "button";
  if (key) {
    const mark = document.createElement("kbd");
    mark.textContent = key;
    one.append(mark);
  }
  one.append(name);
  one.addEventListener("click", () => choose(name));
  one.setAttribute("aria-pressed", labels[at] === name);
  return one;
}

function show() {
  const [path, said, confidence] = data.rows[at];
  byId("photo").src = `data:image/jpeg;base64,${data.photos[at]}`;
  byId("photo").alt = `Photo ${at + 1}`;
  byId("place").textContent = `${at + 1} of ${data.rows.length}`;
  byId("path").textContent = path;
  byId("said").textContent = `Predicted: ${said}, ${(100 * confidence).toFixed(1)}%`;
  const names = data.candidates[at].map((index) => data.classes[index]);
  const extra = labels[at] && ![...names, NONE, UNKNOWN].includes(labels[at]) ? [button(labels[at], "")] : [];
  const focused = [...byId("answers").children].indexOf(document.activeElement);
  byId("answers").replaceChildren(...names.map((name, i) => button(name, String(i + 1))), ...extra);
  if (focused >= 0) byId("answers").children[Math.min(focused, names.length - 1)].focus();
  byId("none").setAttribute("aria-pressed", labels[at] === NONE);
  byId("unknown").setAttribute("aria-pressed", labels[at] === UNKNOWN);
  if (byId("find")) {
    byId("find").value = "";
    byId("find").blur();
  }
  const done = labels.filter(Boolean).length;
  byId("progress").value = done;
  byId("count").textContent = `${done} of ${labels.length} labelled${saved ? "" : ", not saved yet"}`;
  byId("back").disabled = at === 0;
  byId("on").disabled = at === labels.length - 1;
  byId("gap").disabled = done === labels.length;
}

function move(to) {
  at = Math.max(0, Math.min(labels.length - 1, to));
  show();
}

function choose(label) {
  const row = at;
  labels[row] = label;
  saved = false;
  remember();
  move(label ? row + 1 : row);
  const rest = labels.filter((one) => !one).length;
  const next = rest ? `${rest} left.` : `All photos have a label: save ${data.table}.`;
  byId("status").textContent = label ? `Photo ${row + 1}: ${label}. ${next}` : `Photo ${row + 1} has no label.`;
}

function save() {
  const cell = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const rows = data.rows.map((row, i) => [...row, labels[i]].map(cell).join(","));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([`${[data.columns.join(","), ...rows].join("\n")}\n`], { type: "text/csv" }));
  link.download = data.table;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  saved = true;
  remember();
  show();
  byId("status").textContent = `Saved ${data.table} among the downloads.`;
}

function typed(event) {
  const given = event.target.value.trim().toLowerCase();
  const name = data.classes.find((one) => one.toLowerCase() === given);
  if (name) choose(name);
  else if (given) byId("status").textContent = `${event.target.value} is not in the list.`;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input")) return;
  const names = data.candidates[at].map((index) => data.classes[index]);
  if (/^[1-9]$/.test(event.key) && names[event.key - 1]) choose(names[event.key - 1]);
  else if (event.key === "0") choose(NONE);
  else if (event.key === "?") choose(UNKNOWN);
  else if (event.key === "Delete" || event.key === "Backspace") choose("");
  else if (event.key === "ArrowLeft") move(at - 1);
  else if (event.key === "ArrowRight") move(at + 1);
  else return;
  event.preventDefault();
});
addEventListener("beforeunload", (event) => { if (!saved) event.preventDefault(); });
byId("save").addEventListener("click", save);
byId("none").addEventListener("click", () => choose(NONE));
byId("unknown").addEventListener("click", () => choose(UNKNOWN));
byId("back").addEventListener("click", () => move(at - 1));
byId("on").addEventListener("click", () => move(at + 1));
byId("gap").addEventListener("click", () => move(labels.indexOf("")));
if (byId("find")) byId("find").addEventListener("change", typed);
recall();
move(Math.max(0, labels.indexOf("")));
