// Class lists: examples, those saved in this browser, and the last custom list.

import { $, count, h, put } from "./dom.js";
import { loadStarters } from "./starters.js";

const SAVED = "cots-lists";
const TYPED = "cots-typed";
const CURRENT = "cots-classes";
const DRAFT = "Previous custom list";

let starters = {}; // example lists by title
let samples = {}; // a list for each sample photo
let sizes = new Map(); // of the lists that the server knows by name
let early = null; // a sample photo that was chosen before its list was here

/** The names in the text: one per line, or in one line with commas. */
export function names(text) {
  const lines = text.trim().split(/\r?\n/);
  return (lines.length === 1 ? lines[0].split(",") : lines).map((name) => name.trim()).filter(Boolean);
}

/** Fetch the example lists; the first one fills an empty form. */
export async function loadLists() {
  ({ starters, samples, sizes } = await loadStarters());
  const text = $("classes");
  if (!text.value && localStorage.getItem(CURRENT) === null) text.value = Object.values(starters)[0].join("\n");
  text.placeholder = "";
  if (early !== null) useSampleList(early);
  showCount();
  showChoice();
}

/** The title of the example list that the form shows, or null. */
export function exampleTitle() {
  const id = matching($("classes").value) ?? "";
  return id.startsWith("b:") ? id.slice(2) : null;
}

/** Fill in the list that has the class of a sample photo. */
export function useSampleList(photo) {
  early = samples[photo] ? null : photo;
  if (samples[photo]) use(samples[photo].names);
}

/** Replace the names. Typed ones that are in no list are kept as the previous custom list. */
function use(list) {
  const text = $("classes");
  if (names(text.value).length && !matching(text.value)) write(TYPED, text.value);
  text.value = list.join("\n");
  text.dispatchEvent(new Event("input"));
}

export function watchLists(changed) {
  const text = $("classes");
  text.value = localStorage.getItem(CURRENT) ?? "";
  text.addEventListener("input", () => {
    write(CURRENT, text.value);
    showCount();
    showChoice();
    changed();
  });
  $("list").addEventListener("change", () => {
    const chosen = find($("list").value);
    if (chosen) use(chosen);
  });
  $("list-save").addEventListener("click", () => openSave(true));
  $("save-cancel").addEventListener("click", () => openSave(false));
  $("save-ok").addEventListener("click", save);
  $("save-name").addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      save();
    } else if (event.key === "Escape") openSave(false);
  });
  $("list-delete").addEventListener("click", () => {
    const lists = saved();
    delete lists[$("list").value.slice(2)];
    write(SAVED, JSON.stringify(lists));
    showChoice();
    $("list").focus();
  });
  showCount();
  showChoice();
}

function save() {
  const name = $("save-name").value.trim();
  if (!name) return $("save-name").focus();
  write(SAVED, JSON.stringify({ ...saved(), [name]: names($("classes").value) }));
  openSave(false);
  showChoice(`s:${name}`);
}

function openSave(open) {
  $("save").hidden = !open;
  $("save-name").value = "";
  (open ? $("save-name") : $("list-save")).focus();
}

function saved() {
  try {
    const lists = JSON.parse(localStorage.getItem(SAVED) ?? "{}");
    return Object.fromEntries(Object.entries(lists).filter(([, value]) => Array.isArray(value)));
  } catch {
    return {};
  }
}

function write(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // Without storage the page works, it just does not remember the list.
  }
}

const examples = () => ({
  ...starters,
  ...Object.fromEntries(Object.values(samples).map(({ title, names: list }) => [title, list])),
});

const all = () => [
  ...Object.entries(saved()).map(([name, list]) => [`s:${name}`, list]),
  ...Object.entries(examples()).map(([name, list]) => [`b:${name}`, list]),
];

function find(id) {
  if (id === "t") return names(localStorage.getItem(TYPED) ?? "");
  return all().find(([key]) => key === id)?.[1];
}

const matching = (text) => all().find(([, list]) => list.join("\n") === names(text).join("\n"))?.[0];

function showCount() {
  const found = names($("classes").value);
  const twice = found.length - new Set(found).size;
  const duplicates = twice ? `, ${count(twice, "duplicate")}` : "";
  const size = (found.length === 1 && sizes.get(found[0].toLowerCase().replaceAll("_", "-"))) || found.length;
  $("classes-count").textContent = count(size, "class", "classes") + duplicates;
}

function showChoice(wanted = matching($("classes").value)) {
  const option = (id, name) => h("option", { value: id, selected: id === wanted }, name);
  const group = (label, lists, prefix) => {
    const entries = Object.entries(lists);
    const line = ([name, list]) => option(`${prefix}:${name}`, `${name} (${list.length})`);
    return entries.length ? h("optgroup", { label }, entries.map(line)) : null;
  };
  const typed = localStorage.getItem(TYPED);
  put(
    $("list"),
    wanted ? null : h("option", { value: "", selected: true }, $("classes").value ? "Custom list" : "Choose a list"),
    group("Saved in this browser", saved(), "s"),
    group("Examples", examples(), "b"),
    typed ? option("t", DRAFT) : null,
  );
  $("list-delete").hidden = !wanted?.startsWith("s:");
}
