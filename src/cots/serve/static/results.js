// The result area: one photo or several, while they are classified, and after the form was changed.

import { $, put } from "./dom.js";
import { answerParts } from "./answer.js";
import { grid } from "./grid.js";
import { plainName } from "./methods.js";
import { headline, spokenVerdict } from "./verdict.js";

export function showResults(answer) {
  put($("results"), answerParts(answer));
  $("results").classList.remove("old", "working");
  $("live").textContent = spoken(answer);
  inSight();
}

/** Several photos; returns a function that adds the next `{ photo, answer }` or `{ photo, problem }`. */
export function showSeveral(total) {
  const { nodes, add, summary } = grid(total);
  put($("results"), nodes);
  $("results").classList.remove("old", "working");
  inSight();
  return (outcome) => {
    if (add(outcome) === total) $("live").textContent = summary();
  };
}

function spoken(answer) {
  const main = headline(answer.results);
  const agreement = answer.results.length < 2 ? "" : answer.agree ? "All methods agree." : "The methods disagree.";
  return `${spokenVerdict(answer, main)}, according to ${plainName(main.method)}. ${agreement}`;
}

/** The result can be far from the button, on a phone or next to a long form. */
function inSight() {
  const first = $("results").firstElementChild;
  const { top, bottom } = first.getBoundingClientRect();
  if (top < 0 || bottom > innerHeight) $("output").scrollIntoView({ block: "start" });
  if (first.matches(".headline")) first.focus({ preventScroll: true });
}

export function showWorking() {
  $("results").classList.add("working");
  $("live").textContent = "Classifying";
}

export function showFailure(message) {
  $("results").classList.remove("working");
  $("live").textContent = message;
}

/** The form was changed after this result. */
export function markOld() {
  if ($("results").querySelector(".headline, .grid")) $("results").classList.add("old");
}
