// "I want at most 5% errors": a slider that turns the risk-coverage curve into a threshold.

import { count, h, percent, put } from "./dom.js";
import { NARROW, riskCoverage } from "./charts.js";
import { choose, least } from "./coverage.js";
import { ENOUGH } from "./meaning.js";
import { headline } from "./results.js";

const FEW = 30; // accepted predictions; fewer are not evidence

// The figure has a different size on a phone.
let redraw = null;
matchMedia(NARROW).addEventListener("change", () => redraw?.());

/** `state.target` outlives a redraw, so the choice stays when another dataset is shown. */
export function slider(curves, rows, shown, methods, state) {
  const drawn = shown.filter((method) => curves[method]);
  if (!drawn.length) return h("p", { class: "soft" }, "Select a method to see its curve.");
  const photos = Math.max(0, ...rows.map((row) => row.n));
  if (photos < ENOUGH) {
    const need = `A threshold needs at least ${ENOUGH} labelled photos.`;
    return h("p", { class: "meaning" }, `This run has ${count(photos, "photo")}, too few to advise one. `, need);
  }
  const value = h("output", { for: "target" });
  const sentence = h("p", { class: "meaning", role: "status" });
  const figure = h("figure", { class: "curve" });
  const range = h("input", { type: "range", id: "target", min: 0, max: 40, step: 0.5, value: 100 * state.target });
  const draw = () => {
    state.target = Number(range.value) / 100;
    const words = `${Number(range.value)}%`;
    value.textContent = words;
    range.setAttribute("aria-valuetext", `at most ${words} errors`);
    const point = (method) => choose(curves[method], state.target);
    const found = drawn.map((method) => [method, methods.indexOf(method), curves[method], point(method)]);
    put(figure, riskCoverage(found, state.target), thresholds(found));
    const main = headline(drawn.map((method) => ({ method }))).method;
    put(sentence, advice(main, curves[main], state.target, rows.find((row) => row.method === main)));
  };
  range.addEventListener("input", draw);
  draw();
  redraw = draw;
  return [
    h("p", { class: "wish" }, h("label", { for: "target" }, "I want at most ", value, " errors"), range),
    sentence,
    figure,
  ];
}

const between = ({ low, high }) => `${percent(low)} to ${percent(high)}`;

/** The dots of the figure as numbers. */
function thresholds(found) {
  const figures = (point) => [percent(point.threshold, 2), percent(point.coverage), percent(point.risk), between(point)];
  const line = ([method, colour, curve, choice]) => {
    const swatch = h("i", { class: `swatch s${colour % 8}${colour > 7 ? " hollow" : ""}` });
    const cells = choice
      ? figures(choice).map((text) => h("td", null, text))
      : h("td", { colspan: 4, class: "never" }, `not reachable, lowest ${percent(least(curve))}`);
    return h("tr", { "data-method": method }, h("th", { scope: "row" }, swatch, h("code", null, method)), cells);
  };
  const head = (text, i) => h("th", { scope: "col", class: i ? null : "text" }, text);
  const heads = h("tr", null, ["Method", "Threshold", "Coverage", "Errors", "95% interval"].map(head));
  const caption = h("caption", { class: "tip" }, "Threshold per method");
  const table = h("table", null, caption, h("thead", null, heads), h("tbody", null, found.map(line)));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Thresholds" }, table);
}

function advice(method, curve, target, row) {
  const choice = choose(curve, target);
  const name = h("code", null, method);
  if (!choice) {
    return [
      h("b", null, "Not reachable with "), name,
      `: no threshold brings the error rate down to ${percent(target)}. `,
      `The lowest is ${percent(least(curve))}.`,
    ];
  }
  const kept = Math.round(choice.coverage * (row?.n ?? 0));
  const few = row && kept < FEW ? ` That is only ${count(kept, "photo")} of ${row.n}, too few to rely on.` : "";
  if (choice.coverage >= 1 - 1e-9) {
    return ["With ", name, `, no threshold is needed: ${percent(choice.risk)} of all predictions are wrong (95% interval ${between(choice)}).`];
  }
  return [
    "With ", name, ", accept predictions with a confidence of ",
    h("b", null, `at least ${percent(choice.threshold, 2)}`),
    " and check the rest yourself. That covers ", h("b", null, percent(choice.coverage)),
    ` of the photos, with ${percent(choice.risk)} errors (95% interval ${between(choice)}).`, few,
    ` Measured on this run's ${count(row?.n ?? 0, "photo")}; yours may differ. `,
    "For a threshold that holds on new photos, use ", h("code", null, "cots check"), ".",
  ];
}
