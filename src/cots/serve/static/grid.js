// Several photos: a picture and a verdict each, counts, downloads, and the whole answer of the one that is chosen.

import { answerParts } from "./answer.js";
import { count, h, percent, put } from "./dom.js";
import { downloads } from "./download.js";
import { headline, verdict } from "./verdict.js";

const COUNTED = [
  ["class", "classified"],
  ["none", "none of these"],
  ["unsure", "unsure"],
  ["failed", "failed"],
];

/** The nodes; `add(outcome)` shows one more and returns how many there are; `summary()` counts them. */
export function grid(total) {
  const outcomes = [];
  const counts = h("p", { id: "several", class: "counts" });
  const cards = h("ul", { class: "grid", "aria-label": "Photos" });
  const whole = h("div", { class: "whole", id: "whole", tabindex: "-1" });
  const saves = downloads(outcomes);
  const summary = () => {
    const parts = COUNTED.map(([kind, words]) => [outcomes.filter((one) => kindOf(one) === kind).length, words]);
    const shown = parts.filter(([n]) => n).map(([n, words]) => `${n} ${words}`);
    const done = outcomes.length === total ? count(total, "photo") : `${outcomes.length} of ${count(total, "photo")}`;
    return [done, shown.join(", ")].filter(Boolean).join(": ");
  };
  const open = (outcome, button) => {
    for (const other of cards.querySelectorAll("[aria-expanded=true]")) other.setAttribute("aria-expanded", "false");
    button.setAttribute("aria-expanded", "true");
    put(whole, h("h3", null, outcome.photo.file.name || "pasted photo"), answerParts(outcome.answer));
    whole.scrollIntoView({ block: "nearest" });
    whole.focus({ preventScroll: true });
  };
  const add = (outcome) => {
    outcomes.push(outcome);
    cards.append(h("li", { class: `card ${kindOf(outcome)}` }, card(outcome, open)));
    counts.textContent = summary();
    saves.hidden = false;
    return outcomes.length;
  };
  counts.textContent = summary();
  saves.hidden = true;
  return { nodes: [h("div", { class: "over-grid" }, counts, saves), cards, whole], add, summary };
}

const kindOf = ({ answer }) => (answer ? verdict(answer, headline(answer.results)).kind : "failed");

function card(outcome, open) {
  const { photo, answer, problem } = outcome;
  const name = h("span", { class: "soft file" }, photo.file.name || "pasted photo");
  if (!answer) return [picture(photo), h("b", null, "Failed"), h("span", { class: "why" }, problem), name];
  const { title, share, below } = verdict(answer, headline(answer.results));
  const sure = share === null ? h("span", { class: "why" }, below) : h("span", { class: "sure" }, percent(share));
  const onclick = (event) => open(outcome, event.currentTarget);
  return h(
    "button",
    { type: "button", "aria-expanded": "false", "aria-controls": "whole", onclick },
    picture(photo),
    h("b", null, title),
    sure,
    name,
  );
}

function picture({ address }) {
  const image = h("img", { src: address, alt: "", loading: "lazy" });
  image.addEventListener("error", () => image.replaceWith(h("span", { class: "no-preview" }, "No preview")));
  return image;
}
