// What is said about a photo: a class with its confidence, "None of these" or "Unsure". The headline, the grid, the
// screen reader and the methods' table all print what this module decides.

import { listed, number, percent } from "./dom.js";

/** The result shown on top: the one that the server's policy decided on, or the best calibrated one. */
export function headline(results) {
  const ending = (end) => results.find(({ method }) => method.endsWith(end));
  return results.find((one) => one.under_policy) ?? ending("+ecots") ?? ending("+cots") ?? results[results.length - 1];
}

/**
 * What one method says about one photo.
 * - kind: "class", "group", "none" or "unsure"
 * - title: the large words
 * - share: the confidence beside them, or null where it would mislead
 * - below: a small line below them, or null
 * - why: a sentence that explains a kind other than "class"
 */
export function verdict(answer, result) {
  if (answer.none_of_these) return noneOfThese(answer, result);
  if (result.abstained) return unsure(result);
  if (result.node != null && result.label === null) return group(result);
  return { kind: "class", title: result.label, share: result.confidence, below: null, why: null };
}

function noneOfThese({ in_list: score }, { top: [closest], warnings }) {
  const why =
    `No class matches this photo clearly better than everyday words outside the list (score ${number(score, 2)} of 1). ` +
    "If its class is missing, add it to the list.";
  return {
    kind: "none",
    title: "None of these",
    share: null,
    below: `Closest class: ${closest.class} ${percent(closest.probability)}`,
    why: warnings.join(" ") || why, // noise, one colour, or too few pixels
  };
}

/** The node that a taxonomy is sure of, and what it leaves open. */
function group({ node, rank, node_probability: share, unsure: open, candidates }) {
  const likely = candidates.slice(0, 3).map((one) => `${one.class} ${percent(one.probability)}`);
  return {
    kind: "group",
    title: rank ? `${node} (${rank})` : node,
    share,
    below: `${open[0].toUpperCase()}${open.slice(1)} unsure: ${likely.join(", ")}`,
    why: `No ${open} is likely enough, so the answer is the lowest group in this server's taxonomy that is.`,
  };
}

function unsure({ top, label_set: set, path }) {
  const candidates = top.slice(0, 2).map((one) => `${one.class} ${percent(one.probability)}`);
  let reason = "The confidence is below the threshold of this server's policy";
  if (path) reason = "Neither a class nor a group of this server's taxonomy is likely enough";
  else if (set?.length === 0) reason = "No class is likely enough under this server's policy";
  return {
    kind: "unsure",
    title: "Unsure",
    share: null,
    below: `Closest ${candidates.length === 1 ? "class" : "classes"}: ${listed(candidates)}`,
    why: `${reason}. Look at this photo yourself.`,
  };
}

/** One line for a screen reader. */
export function spokenVerdict(answer, result) {
  const { title, share, below } = verdict(answer, result);
  if (share === null) return `${title}. ${below}`;
  return `${title}, ${percent(share, 0)}${below ? `. ${below}` : ""}`;
}
