// The second tab: the list of runs, and the report of one.

import { get } from "./api.js";
import { $, count, h, listed, put } from "./dom.js";

const EXAMPLE =
  "cots run --data DATA --datasets pets --methods zeroshot,tpt,tpt+cots,tpt+ecots --out runs/first\n" +
  "cots report runs/first\n" +
  "cots serve --runs runs";

let wanted = null; // what was opened last

export async function openRuns(id) {
  wanted = id;
  if (!$("runs").childElementCount) put($("runs"), h("p", { class: "soft" }, "Loading the runs"));
  const { runs } = await get("/v1/runs");
  if (wanted !== id) return; // another run was opened in the meantime
  showList(runs, id);
  const run = runs.find((one) => one.id === id);
  if (run && !run.damaged) return showRun(run);
  put($("run"), id === null ? null : h("p", { class: "alert", role: "alert" }, `There is no readable run ${id}.`));
}

function showList(runs, id) {
  if (!runs.length) {
    const words = "No runs yet. Create one, write its report, and start the server with its folder:";
    put($("runs"), h("div", { class: "nothing" }, h("p", null, words), h("pre", null, EXAMPLE)));
    return;
  }
  put($("runs"), h("ul", { class: "runs", "aria-label": "Runs" }, runs.map((run) => item(run, run.id === id))));
}

function item(run, open) {
  const name = h("b", null, run.id);
  if (run.damaged) {
    const badge = h("span", { class: "badge" }, "damaged");
    return h("li", { class: "damaged" }, name, badge, h("span", { class: "soft" }, run.damaged));
  }
  const sizes = `${count(run.methods.length, "method")}, ${count(run.seeds.length, "seed")}`;
  return h(
    "li",
    null,
    h(
      "a",
      { href: `#runs/${encodeURIComponent(run.id)}`, "aria-current": open ? "true" : null },
      name,
      run.complete ? null : h("span", { class: "badge" }, "not finished"),
      run.report ? null : h("span", { class: "badge" }, "no report"),
      h("span", { class: "soft" }, `${run.model}; ${listed(run.datasets)}; ${sizes}`),
      h("span", { class: "soft when" }, run.created.slice(0, 16).replace("T", " ")),
    ),
  );
}

function showRun(run) {
  const title = h("h2", { id: "run-title", tabindex: "-1" }, run.id);
  if (run.report) {
    const link = h("a", { href: run.report, target: "_blank", rel: "noopener" }, "Open the report in a new tab");
    // The report runs no scripts and loads nothing.
    const frame = h("iframe", { class: "report", sandbox: "", src: run.report, title: `Report of ${run.id}` });
    put($("run"), title, h("p", null, link), frame);
  } else {
    const words = "This run has no report yet. Write it on the server, then open this page again:";
    put($("run"), title, h("p", null, words), h("pre", null, `cots report RUNS/${run.id}`));
  }
  $("runs-live").textContent = `Run ${run.id} is open.`;
  title.focus({ preventScroll: true });
  title.scrollIntoView({ block: "nearest" });
}
