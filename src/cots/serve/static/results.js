// The answer for a photo: a headline, the methods compared, the views.

import { $, count, h, listed, number, percent, put } from "./dom.js";
import { compare } from "./compare.js";
import { meaning } from "./meaning.js";
import { named, plainName } from "./methods.js";

/** The result shown on top: the best calibrated of the requested methods. */
export function headline(results) {
  const ending = (end) => results.find(({ method }) => method.endsWith(end));
  return ending("+ecots") ?? ending("+cots") ?? results[results.length - 1];
}

/** The answer for one photo, as nodes; `meaning` fills in its sentence later. Only the first has ids. */
function result(answer, place = 0) {
  const main = headline(answer.results);
  const sentence = h("p", { class: "meaning" });
  meaning(sentence, answer, main);
  const id = (name) => (place ? null : name);
  return [
    h(
      "div",
      { class: "headline", tabindex: "-1" },
      h("p", { class: "said" }, h("b", null, labelOf(main)), " ", h("span", { class: "sure" }, percent(main.confidence))),
      range(main, id("range")),
      policy(main, id("policy")),
      h("p", { class: "soft" }, "according to ", named(main.method), `, out of ${count(answer.classes, "class", "classes")}`),
      sentence,
    ),
    answer.warnings.map((text) => h("p", { class: "warn", role: "note" }, text)),
    answer.none_of_these ? outside(answer, id("outside")) : null,
    answer.agree ? null : disagreement(answer.results, id("disagree")),
    compare(answer.results, main),
    views(answer, `views-${place}`),
    h(
      "p",
      { class: "soft small" },
      `${answer.image.name || "photo"}, ${answer.image.width} × ${answer.image.height}; seed ${answer.seed}; `,
      `${number(answer.milliseconds / 1000, 1)} s total.`,
    ),
  ];
}

export function showResults(answer) {
  put($("results"), result(answer));
  $("results").classList.remove("old", "working");
  $("live").textContent = spoken(answer);
  inSight();
}

/** Several photos: a line each, which opens to the whole answer. Returns a function that adds the next. */
export function showSeveral(total) {
  const done = h("p", { class: "soft", id: "several" });
  const list = h("div", { class: "photos" });
  put($("results"), done, list);
  $("results").classList.remove("old");
  const tell = () => (done.textContent = `${list.childElementCount} of ${count(total, "photo")}`);
  tell();
  inSight();
  return (src, name, answer, problem) => {
    const picture = h("img", { src, alt: "", width: 56, height: 56 });
    if (problem) list.append(h("p", { class: "photo bad" }, picture, h("b", null, name), " ", problem));
    else {
      const main = headline(answer.results);
      const flag = answer.none_of_these ? h("span", { class: "flag" }, "perhaps none of these") : null;
      const line = h("summary", null, picture, h("b", null, labelOf(main)), h("span", { class: "sure" }, percent(main.confidence)), h("span", { class: "soft" }, name), flag);
      list.append(h("details", { class: "photo" }, line, h("div", null, result(answer, list.childElementCount))));
    }
    tell();
    if (list.childElementCount === total) {
      $("results").classList.remove("working");
      $("live").textContent = `${count(total, "photo")} classified.`;
    }
  };
}

/** A policy whose set is empty gives no label. */
const labelOf = ({ label }) => label ?? "unsure";

function spoken(answer) {
  const main = headline(answer.results);
  const agreement = answer.results.length < 2 ? "" : answer.agree ? "All methods agree." : "The methods disagree.";
  return `${labelOf(main)}, ${percent(main.confidence, 0)}, according to ${plainName(main.method)}. ${agreement}`;
}

/** The result can be far from the button, on a phone or next to a long form. */
function inSight() {
  const first = $("results").firstElementChild;
  const { top, bottom } = first.getBoundingClientRect();
  if (top < 0 || bottom > innerHeight) $("output").scrollIntoView({ block: "start" });
  if (first.matches(".headline")) first.focus({ preventScroll: true });
}

/** How far the confidence would move with other random views. */
function range({ confidence_range: ends }, id) {
  if (!ends) return null;
  const [low, high] = ends.map((end) => percent(end, 0));
  return h("p", { class: "soft", id }, `90% range with other random views: ${low} to ${high}`);
}

/** What the server's policy says, where it applies. */
function policy({ label_set: set, abstained }, id) {
  const words = [
    abstained ? "Unsure under the policy, so check this photo yourself." : null,
    set ? `The policy's set: ${set.length ? listed(set) : "empty, no class is likely enough"}.` : null,
  ].filter(Boolean);
  return words.length ? h("p", { class: abstained ? "warn" : "soft", id }, words.join(" ")) : null;
}

const outside = ({ in_list: score }, id) =>
  h(
    "p",
    { class: "warn", role: "note", id },
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
  if ($("results").querySelector(".headline, .photo")) $("results").classList.add("old");
}

function disagreement(results, id) {
  const said = new Map();
  for (const one of results) said.set(labelOf(one), [...(said.get(labelOf(one)) ?? []), plainName(one.method)]);
  const parts = [...said].map(([label, who]) => `${listed(who)} ${who.length === 1 ? "says" : "say"} ${label}`);
  return h(
    "p",
    { class: "warn", role: "note", id },
    h("b", null, "The methods disagree: "),
    `${parts.join("; ")}. Check the photo yourself before relying on it.`,
  );
}

/** Methods that selected the same views share a row. */
function views({ results, thumbnails }, id) {
  const pictures = new Map(thumbnails.map(({ view, src }) => [view, src]));
  if (!pictures.size) return null;
  const groups = new Map();
  for (const result of results) {
    if (!result.views.length) continue;
    const key = [...result.views].sort((a, b) => a - b).join(" ");
    groups.set(key, { views: result.views, methods: [...(groups.get(key)?.methods ?? []), plainName(result.method)] });
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
    { class: "views", "aria-labelledby": id },
    h("h3", { id }, "Selected views"),
    groups.size
      ? [...groups.values()].map(({ views: some, methods }) =>
          row(`The whole photo, then ${selected(some.length)} selected by ${listed(methods)}`, [0, ...some]),
        )
      : row("The whole photo; none of these methods selects views", [0]),
  );
}
