// One sentence: what the confidence means, and where that was verified.

import { h, number, put } from "./dom.js";

// Accuracy and mean confidence in percent on all test photos, three seeds, from docs/results.md.
export const CHECKED = {
  c895ab454030: {
    name: "mini",
    where: "3,145 photos, with the lists “Cats and dogs”, “Objects and animals” and “Flowers”",
    methods: {
      zeroshot: [91.3, 91.1],
      tpt: [92.3, 93.6],
      "tpt+sals": [92.3, 93.1],
      "tpt+cor": [92.3, 91.1],
      "tpt+cots": [92.3, 91.8],
      "tpt+ecots": [93.1, 92.3],
      "tpt+ensemble": [93.1, 93.7],
    },
  },
};

/** Write the sentence for `result` into `node`. */
export function meaning(node, { model, classes }, result) {
  if (classes === 1) {
    put(node, "With one class, the confidence is always 100% and means nothing.");
    return;
  }
  const promise = `Out of 100 photos of these classes with this confidence, ${of100(result.confidence)} should be right.`;
  const verified = card(model, result);
  put(node, verified ? `${promise} ${verified}` : unverified(model, result));
}

export function of100(confidence) {
  const n = Math.round(100 * confidence);
  if (n >= 100) return "more than 99";
  return n < 1 ? "fewer than 1" : `about ${n}`;
}

function card(model, { method }) {
  const known = Object.entries(CHECKED).find(([hash]) => model.weights_hash.startsWith(hash))?.[1];
  const figures = known?.methods[method];
  if (!figures) return null;
  const [right, sure] = figures.map((value) => `${number(value, 1)}%`);
  const measured = `mean confidence ${sure}, accuracy ${right}`;
  const rest = "For other class names this is an expectation, not a measurement.";
  return `Verified for ${known.name} with ${method} on ${known.where}: ${measured}. ${rest}`;
}

const unverified = (model, { method }) => [
  `This confidence has not been verified for ${method} with ${model.name}; `,
  h("a", { href: "#runs" }, "a run"),
  " on 200 or more labelled photos would verify it.",
];
