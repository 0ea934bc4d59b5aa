// One sentence: what the confidence means, and where that was verified.

import { h, listed, number } from "./dom.js";

// Accuracy and mean confidence in percent on all test photos, three seeds, from docs/results.md.
export const CHECKED = {
  c895ab454030: {
    name: "mini",
    photos: "3,145 photos",
    lists: ["Cats and dogs", "Objects and animals", "Flowers"],
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

/** The sentence for `result`, as nodes; `list` is the title of the example list that was used, if it was one. */
export function meaning({ model, classes, list }, result) {
  if (classes === 1) return "With one class, the confidence is always 100% and means nothing.";
  const known = Object.entries(CHECKED).find(([hash]) => model.weights_hash.startsWith(hash))?.[1];
  const figures = known?.methods[result.method];
  const right = of100(result.confidence);
  if (!figures) return unverified(model, result);
  const [accuracy, sure] = figures.map((value) => `${number(value, 1)}%`);
  const measured = `${known.photos} of the lists ${listed(known.lists.map((title) => `“${title}”`))}`;
  const outcome = `mean confidence ${sure}, accuracy ${accuracy}`;
  if (known.lists.includes(list)) {
    return `Out of 100 photos with this confidence, ${right} should be right. Verified on ${measured}: ${outcome}.`;
  }
  return (
    `If the photo shows one of these classes, ${right} of 100 such answers should be right. That is an expectation: ` +
    `it was verified on other class names, with ${measured} (${outcome}).`
  );
}

export function of100(confidence) {
  const n = Math.round(100 * confidence);
  if (n >= 100) return "more than 99";
  return n < 1 ? "fewer than 1" : `about ${n}`;
}

const unverified = (model, { method }) => [
  `This confidence has not been verified for ${method} with ${model.name}; `,
  h("a", { href: "#runs" }, "a run"),
  " on 200 or more labelled photos would verify it.",
];
