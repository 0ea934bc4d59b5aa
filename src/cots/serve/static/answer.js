// The whole answer for one photo, from top to bottom. A new part is a function
// (answer, main, id) => node or null, added to PARTS; `id(name)` gives its element an id.

import { h, listed, number, percent } from "./dom.js";
import { compare } from "./compare.js";
import { meaning } from "./meaning.js";
import { named, plainName } from "./methods.js";
import { headline, verdict } from "./verdict.js";
import { views } from "./views.js";

const PARTS = [top, warnings, disagreement, compare, views, about];

/** The answer as nodes. `main` is the result of the method that the top shows. */
export function answerParts(answer) {
  const main = headline(answer.results);
  return PARTS.map((part) => part(answer, main)).filter(Boolean);
}

function top(answer, main) {
  const { kind, title, share, below, why } = verdict(answer, main);
  const sure = share === null ? null : h("span", { class: "sure" }, percent(share));
  return h(
    "div",
    { class: `headline ${kind}`, tabindex: "-1" },
    h("p", { class: "said" }, h("b", null, title), " ", sure),
    below ? h("p", { class: "below", id: "below" }, below) : null,
    kind === "class" ? range(main) : null,
    labelSet(main),
    h("p", { class: "soft" }, "according to ", named(main.method), `, ${outOf(answer.classes)}`),
    h("p", { class: "meaning", id: "meaning" }, why ?? meaning(answer, main)),
  );
}

const outOf = (classes) => (classes === 1 ? "with a single class" : `out of ${classes.toLocaleString("en")} classes`);

/** How far the confidence would move with other random views. */
function range({ confidence_range: ends }) {
  if (!ends) return null;
  const [low, high] = ends.map((end) => percent(end));
  if (low === high) return null;
  return h("p", { class: "soft", id: "range" }, `90% range with other random views: ${low} to ${high}`);
}

/** The prediction set of the server's policy, where it applies. */
function labelSet({ label_set: set }) {
  if (!set?.length) return null;
  const words = set.length === 1 ? `Only ${set[0]} is in the policy's set` : `In the policy's set: ${listed(set)}`;
  return h("p", { class: "soft", id: "label-set" }, words);
}

function warnings(answer, main) {
  const rest = answer.warnings.filter((text) => !main.warnings.includes(text)); // the top has the others
  return rest.map((text) => h("p", { class: "warn", role: "note" }, text));
}

function disagreement(answer) {
  if (answer.agree || answer.none_of_these) return null;
  const said = new Map();
  for (const one of answer.results) {
    const label = one.label ?? one.node ?? one.top[0].class;
    said.set(label, [...(said.get(label) ?? []), plainName(one.method)]);
  }
  if (said.size < 2) return null; // they agree on the group
  const parts = [...said].map(([label, who]) => `${listed(who)} ${who.length === 1 ? "says" : "say"} ${label}`);
  return h(
    "p",
    { class: "warn", role: "note", id: "disagree" },
    h("b", null, "The methods disagree: "),
    `${parts.join("; ")}. Check the photo yourself before relying on it.`,
  );
}

function about({ image, seed, milliseconds, results }) {
  const used = results[0].views_used;
  const photo = `${image.name || "photo"}, ${image.width} × ${image.height}; ${used} view${used === 1 ? "" : "s"}, seed ${seed}`;
  const time = `${number(milliseconds / 1000, 1)} s in total, from the photo's arrival to the answer`;
  return h("p", { class: "soft small" }, `${photo}; ${time}.`);
}
