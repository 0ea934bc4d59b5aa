// One chart: for each class a bar per method.

import { h, number, percent } from "./dom.js";
import { named, plainName } from "./methods.js";

/** The classes of `main`, then those that another method puts first. */
export function rows(results, main) {
  const first = results.map(({ top }) => top[0].class);
  return [...new Set([...main.top.map((one) => one.class), ...first])];
}

/** The probability that a method gives a class; for one below its list, the bound. */
function value({ top }, name) {
  const found = top.find((one) => one.class === name);
  if (found) return { share: found.probability, text: percent(found.probability) };
  return { share: 0, text: `<${percent(top[top.length - 1].probability)}`.replace("<<", "<") };
}

export function compare({ results, none_of_these: none }, main) {
  return h(
    "figure",
    { class: "compare" },
    h("figcaption", null, "Probability of each class by method"),
    legend(results, main, none ? "closest class" : "answer"),
    h("ol", { class: "bars" }, rows(results, main).map((name) => group(name, results, main))),
  );
}

function legend(results, main, answer) {
  const heads = ["method", "confidence", answer, "tau", "alpha", "ms"];
  const explained = {
    tau: "temperature; above 1 lowers the confidence, below 1 raises it",
    alpha: "ensemble weight of the whole photo",
    ms: "milliseconds to adapt and calibrate, without encoding the photo",
  };
  const line = (result, place) =>
    h(
      "tr",
      { class: result === main ? "main" : null, "data-method": result.method },
      h("th", { scope: "row" }, h("span", { class: `swatch s${place % 8}`, "aria-hidden": "true" }), named(result.method)),
      h("td", null, percent(result.node_probability ?? result.confidence)),
      h("td", null, result.label ?? result.node ?? "unsure"),
      h("td", null, number(result.tau, 2)),
      h("td", null, number(result.alpha, 2)),
      h("td", null, String(Math.round(result.milliseconds))),
    );
  const table = h(
    "table",
    { class: "legend" },
    h("thead", null, h("tr", null, heads.map((name) => h("th", { scope: "col", title: explained[name] }, name)))),
    h("tbody", null, results.map(line)),
  );
  return [
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Methods" }, table),
    h("p", { class: "soft small" }, "ms: time to adapt and calibrate, without encoding the photo."),
  ];
}

function group(name, results, main) {
  return h(
    "li",
    { class: name === main.label ? "first" : null, "data-class": name },
    h("span", { class: "name", title: name }, name),
    h("div", { class: "group" }, results.map((result, place) => bar(result, place, name))),
  );
}

function bar(result, place, name) {
  const { share, text } = value(result, name);
  const filled = h("span", { class: `fill s${place % 8}` });
  filled.style.inlineSize = `${100 * share}%`;
  return h(
    "div",
    { class: "bar", title: plainName(result.method), "data-method": result.method },
    h("span", { class: "track", "aria-hidden": "true" }, filled),
    h("span", { class: "tip" }, `${plainName(result.method)}: `),
    h("span", { class: "value" }, text),
  );
}
