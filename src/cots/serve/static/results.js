// The answer for a photo: a headline, the bars of every method, the views.

import { $, count, h, listed, number, percent, put } from "./dom.js";
import { meaning } from "./meaning.js";

/** The result shown on top: the best calibrated of the requested methods. */
export function headline(results) {
  const ending = (end) => results.find(({ method }) => method.endsWith(end));
  return ending("+ecots") ?? ending("+cots") ?? results[results.length - 1];
}

export function showResults(answer) {
  const main = headline(answer.results);
  const sentence = h("p", { class: "meaning" });
  const classes = count(answer.classes, "class", "classes");
  put(
    $("results"),
    h(
      "div",
      { class: "headline" },
      h("p", { class: "said" }, h("b", null, main.label), " ", h("span", { class: "sure" }, percent(main.confidence))),
      range(main),
      policy(main),
      h("p", { class: "soft" }, "according to ", h("code", null, main.method), `, out of ${classes}`),
      sentence,
    ),
    answer.warnings.map((text) => h("p", { class: "warn", role: "note" }, text)),
    answer.none_of_these ? outside(answer) : null,
    answer.agree ? null : disagreement(answer.results),
    answer.results.map((result) => method(result, result === main)),
    views(answer),
    h(
      "p",
      { class: "soft small" },
      `${answer.image.name || "photo"}, ${answer.image.width} × ${answer.image.height}; seed ${answer.seed}; `,
      `${number(answer.milliseconds / 1000, 1)} s total.`,
    ),
  );
  $("results").classList.remove("old", "working");
  $("live").textContent =
    `${main.label}, ${percent(main.confidence, 0)}, according to ${main.method}. ` +
    (answer.results.length < 2 ? "" : answer.agree ? "All methods agree." : "The methods disagree.");
  meaning(sentence, answer, main);
  // On a phone the result is far below the button.
  if (matchMedia("(max-width: 820px)").matches) $("output").scrollIntoView({ block: "start" });
}

/** How far the confidence would move with other random views. */
function range({ confidence_range: ends }) {
  if (!ends) return null;
  const [low, high] = ends.map((end) => percent(end, 0));
  return h("p", { class: "soft", id: "range" }, `With other random views: ${low} to ${high}, nine times out of ten`);
}

/** What the server's policy says, where it applies. */
function policy({ label_set: set, abstained }) {
  const words = [
    abstained ? "Unsure: below the policy's threshold, so check this photo yourself." : null,
    set ? `The policy's set: ${set.length ? listed(set) : "empty, no class is likely enough"}.` : null,
  ].filter(Boolean);
  return words.length ? h("p", { class: abstained ? "warn" : "soft", id: "policy" }, words.join(" ")) : null;
}

const outside = ({ in_list: score }) =>
  h(
    "p",
    { class: "warn", role: "note", id: "outside" },
    h("b", null, "Perhaps none of these: "),
    `everyday words that are not in the list match this photo about as well (score ${number(score, 2)}). `,
    "The confidence only compares the listed classes.",
  );

export function showWorking(on) {
  $("results").classList.toggle("working", on);
  if (on) $("live").textContent = "Classifying";
}

/** The form was changed after this result. */
export function markOld() {
  if ($("results").querySelector(".headline")) $("results").classList.add("old");
}

function disagreement(results) {
  const said = new Map();
  for (const { label, method: who } of results) said.set(label, [...(said.get(label) ?? []), who]);
  const parts = [...said].map(([label, who]) => `${listed(who)} ${who.length === 1 ? "says" : "say"} ${label}`);
  return h(
    "p",
    { class: "warn", role: "note", id: "disagree" },
    h("b", null, "The methods disagree: "),
    `${parts.join("; ")}. Check the photo yourself before relying on it.`,
  );
}

function method(result, main) {
  const id = `result-${result.method.replace(/[^a-z0-9]+/gi, "-")}`;
  const fact = (name, value, title) => h("div", { title }, h("dt", null, name), h("dd", null, value));
  return h(
    "section",
    { class: `method${main ? " main" : ""}`, "aria-labelledby": id, "data-method": result.method },
    h(
      "header",
      null,
      h("h3", { id }, h("code", null, result.method)),
      h(
        "dl",
        { class: "inline" },
        fact("tau", number(result.tau, 2), "temperature; above 1 lowers the confidence, below 1 raises it"),
        result.alpha === null ? null : fact("alpha", number(result.alpha, 2), "ensemble weight of the whole photo"),
        fact("ms", String(Math.round(result.milliseconds)), "milliseconds"),
      ),
    ),
    h("ol", { class: "bars" }, result.top.map(bar)),
  );
}

function bar({ class: name, probability }, place) {
  const fillBar = h("span", { class: "fill" });
  fillBar.style.inlineSize = `${100 * probability}%`;
  return h(
    "li",
    { class: place === 0 ? "first" : null },
    h("span", { class: "name", title: name }, name),
    h("span", { class: "track", "aria-hidden": "true" }, fillBar),
    h("span", { class: "value" }, percent(probability)),
  );
}

/** Methods that selected the same views share a row. */
function views({ results, thumbnails }) {
  const pictures = new Map(thumbnails.map(({ view, src }) => [view, src]));
  if (!pictures.size) return null;
  const groups = new Map();
  for (const result of results) {
    if (!result.views.length) continue;
    const key = [...result.views].sort((a, b) => a - b).join(" ");
    groups.set(key, { views: result.views, methods: [...(groups.get(key)?.methods ?? []), result.method] });
  }
  const picture = (view) => {
    const words = view === 0 ? "whole photo" : `view ${view}`;
    const image = h("img", { src: pictures.get(view), alt: words, width: 80, height: 80 });
    return h("figure", null, image, h("figcaption", null, words));
  };
  const row = (title, some) => [
    h("p", { class: "soft small wide" }, title),
    h("div", { class: "thumbs" }, some.filter((view) => pictures.has(view)).map(picture)),
  ];
  const selected = (n) => (n === 1 ? "the view" : `the ${n} views`);
  return h(
    "section",
    { class: "views", "aria-labelledby": "views-title" },
    h("h3", { id: "views-title" }, "Selected views"),
    groups.size
      ? [...groups.values()].map(({ views: some, methods }) =>
          row(`The whole photo, then ${selected(some.length)} selected by ${listed(methods)}`, [0, ...some]),
        )
      : row("The whole photo; none of these methods selects views", [0]),
  );
}
