// The second tab: the list of runs, and one opened run.

import { get } from "./api.js";
import { $, count, h, listed, number, put } from "./dom.js";
import { reliability } from "./charts.js";
import { slider } from "./slider.js";
import { sortable } from "./table.js";

const MAIN = ["zeroshot", "tpt", "tpt+cots", "tpt+ecots"];
const SHOWN = 4;
const EXAMPLE =
  "cots run --data DATA --datasets pets --methods zeroshot,tpt,tpt+cots,tpt+ecots --out runs/first\n" +
  "cots serve --runs runs";

const KEY = [["acc", "accuracy"], ["over", "overconfidence"], ["under", "underconfidence"]];
const UNFINISHED = "This run is not finished; the figures cover its records so far.";

let opened = null;
let wanted = null;

export async function openRuns(id) {
  wanted = id;
  const { runs } = await get("/v1/runs");
  runs.sort((a, b) => String(b.created).localeCompare(String(a.created)));
  showList(runs, id);
  if (id === null) {
    opened = null;
    put($("run"));
    return;
  }
  if (opened === id) return;
  put($("run"), h("p", { class: "soft" }, `Loading ${id}`));
  try {
    const run = await get(`/v1/runs/${encodeURIComponent(id)}`);
    if (wanted !== id) return; // another run was opened meanwhile
    showRun(run);
    opened = run.complete ? id : null;
  } catch (error) {
    if (wanted === id) put($("run"), h("p", { class: "alert", role: "alert" }, error.message));
  }
}

function showList(runs, id) {
  if (!runs.length) {
    put(
      $("runs"),
      h(
        "div",
        { class: "nothing" },
        h("p", null, "No runs yet. Create one and start the server with its folder:"),
        h("pre", null, EXAMPLE),
      ),
    );
    return;
  }
  const damaged = (run) =>
    h(
      "li",
      { class: "damaged" },
      h("b", null, run.id),
      h("span", { class: "badge" }, "damaged"),
      h("span", { class: "soft" }, run.damaged),
    );
  const item = (run) =>
    h(
      "li",
      null,
      h(
        "a",
        { href: `#runs/${encodeURIComponent(run.id)}`, "aria-current": run.id === id ? "true" : null },
        h("b", null, run.id),
        run.complete ? null : h("span", { class: "badge" }, "not finished"),
        h("span", { class: "soft" }, `${run.model}; ${listed(run.datasets)}; ${sizes(run)}`),
        h("span", { class: "soft when" }, day(run.created)),
      ),
    );
  put($("runs"), h("ul", { class: "runs", "aria-label": "Runs" }, runs.map((run) => (run.damaged ? damaged(run) : item(run)))));
}

const sizes = (run) => `${count(run.methods.length, "method")}, ${count(run.seeds.length, "seed")}`;

const day = (when) => (when ? String(when).slice(0, 16).replace("T", " ") : "");

function showRun(run) {
  const titles = new Map(run.rows.map((row) => [row.dataset, row.title || row.dataset]));
  // With one dataset, the pooled rows are that dataset's.
  const pooledFirst = [...titles.keys()].sort((a, b) => (b === "all") - (a === "all"));
  const sets = pooledFirst.filter((name) => name !== "all" || titles.size !== 2);
  const methods = [...new Set(run.rows.map((row) => row.method))];
  const main = MAIN.filter((method) => methods.includes(method));
  const state = { dataset: sets[0], shown: new Set(main.length > 1 ? main : methods.slice(0, SHOWN)), target: 0.05 };
  const [table, figures, curve] = [h("div"), h("div"), h("div")];
  const draw = () => {
    const rows = run.rows.filter((row) => row.dataset === state.dataset);
    put(table, figuresTable(rows, titles.get(state.dataset)));
    const some = methods.filter((method) => state.shown.has(method));
    put(figures, diagrams(run.reliability[state.dataset] ?? {}, rows, some, titles.get(state.dataset)));
    put(curve, slider(run.risk_coverage[state.dataset] ?? {}, rows, some, methods, state));
  };
  const choice = h("select", { id: "run-set" }, sets.map((name) => h("option", { value: name }, titles.get(name))));
  choice.addEventListener("change", () => {
    state.dataset = choice.value;
    draw();
  });
  const chip = (method) => {
    const id = `show-${method.replace(/[^a-z0-9]+/gi, "-")}`;
    const box = h("input", { type: "checkbox", id, checked: state.shown.has(method) });
    box.addEventListener("change", () => {
      if (box.checked) state.shown.add(method);
      else state.shown.delete(method);
      draw();
    });
    return h("div", { class: "check" }, box, h("label", { for: id }, h("code", null, method)));
  };
  put(
    $("run"),
    h("h2", { id: "run-title", tabindex: "-1" }, run.id),
    run.complete ? null : h("p", { class: "warn", role: "note" }, UNFINISHED),
    sets.length > 1 ? h("p", { class: "pick" }, h("label", { for: "run-set" }, "Dataset"), choice) : null,
    table,
    h("h3", null, "Reliability"),
    h("fieldset", { class: "chips" }, h("legend", { class: "tip" }, "Methods in the figures"), methods.map(chip)),
    figures,
    h("h3", null, "How many errors can you accept?"),
    curve,
    h("p", { class: "soft small wide" }, run.caption),
  );
  draw();
  $("runs-live").textContent = `Run ${run.id} is open.`;
  $("run-title").focus({ preventScroll: true });
  $("run-title").scrollIntoView({ block: "nearest" });
}

function figuresTable(rows, title) {
  const spread = (value, std, digits) => [
    number(value, digits),
    (std ?? null) === null ? null : h("span", { class: "pm" }, ` ± ${number(std, digits)}`),
  ];
  const column = (name, head, digits, first, std) => ({
    name,
    title: head,
    first,
    value: (row) => row[name],
    show: (row) => (std ? spread(row[name], row[std], digits) : number(row[name], digits)),
  });
  const name = ({ method }) => method;
  const columns = [
    { name: "method", title: "Method", text: true, value: name, show: (row) => h("code", null, name(row)) },
    column("accuracy", "Accuracy %", 1, "down", "accuracy_std"),
    column("mean_confidence", "Confidence %", 1, "down"),
    column("ece", "ECE %", 2, "up", "ece_std"),
    column("nll", "NLL", 3, "up"),
    column("brier", "Brier %", 2, "up"),
    column("n", "Photos", 0, "down"),
  ];
  if (rows.some((row) => row.failed)) columns.push(column("failed", "Failed", 0, "down"));
  return sortable(`Figures of the methods, ${title}`, columns, rows);
}

function diagrams(bins, rows, methods, title) {
  const drawn = methods.filter((method) => bins[method]);
  const row = (method) => rows.find((one) => one.method === method);
  if (!drawn.length) return h("p", { class: "soft" }, "Select a method to see its diagram.");
  return [
    h(
      "div",
      { class: "grid", tabindex: "0", role: "group", "aria-label": `Reliability diagrams, ${title}` },
      drawn.map((method) => h("figure", null, reliability(bins[method], method, row(method)))),
    ),
    h(
      "p",
      { class: "soft small wide key" },
      KEY.map(([kind, words]) => h("span", { class: "entry" }, h("i", { class: kind }), words)),
      " A tick on the axis marks an empty bin.",
    ),
  ];
}
