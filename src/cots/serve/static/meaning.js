// One sentence: what the confidence means, and where that was verified.

import { get } from "./api.js";
import { count, h, number, percent, put } from "./dom.js";

const FEW = 20; // photos in a bin; fewer are not evidence

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

/** Write the sentence for `result` into `node`; the server's runs, once loaded, replace its second half. */
export async function meaning(node, model, result) {
  const sentence = `Out of 100 photos with this confidence, ${of100(result.confidence)} should be right.`;
  put(node, sentence, " ", card(model, result));
  const found = await fromRuns(model, result).catch(() => null);
  if (found) put(node, sentence, " ", found);
}

export function of100(confidence) {
  const n = Math.round(100 * confidence);
  if (n >= 100) return "more than 99";
  return n < 1 ? "fewer than 1" : `about ${n}`;
}

function card(model, { method }) {
  const known = Object.entries(CHECKED).find(([hash]) => model.weights_hash.startsWith(hash))?.[1];
  const figures = known?.methods[method];
  if (figures) {
    const [right, sure] = figures.map((value) => `${number(value, 1)}%`);
    const found = `mean confidence ${sure}, accuracy ${right}`;
    const rest = "For other class names this is an expectation, not a measurement.";
    return `Verified for ${known.name} with ${method} on ${known.where}: ${found}. ${rest}`;
  }
  const what = known ? `${method} with ${known.name}` : "this model";
  return [
    `This has not been verified for ${what}; `,
    h("a", { href: "#runs" }, "a run"),
    " on labelled photos would.",
  ];
}

/** The bin of this confidence in the newest finished run of the same weights and method. */
async function fromRuns(model, { method, confidence }) {
  const { runs } = await get("/v1/runs");
  const usable = runs
    .filter((run) => run.complete && run.weights_hash === model.weights_hash && run.methods.includes(method))
    .sort((a, b) => String(b.created).localeCompare(String(a.created)));
  if (!usable.length) return null;
  const { id } = usable[0];
  const { reliability, rows } = await get(`/v1/runs/${encodeURIComponent(id)}`);
  const bins = reliability.all?.[method];
  if (!bins) return null;
  const at = bin(bins.edges, confidence);
  const photos = bins.count[at];
  const between = `${percent(bins.edges[at], 0)} and ${percent(bins.edges[at + 1], 0)}`;
  const where = ["run ", h("a", { href: `#runs/${id}` }, id)];
  if (photos >= FEW) {
    const right = `${percent(bins.accuracy[at], 0)} of its ${photos} predictions between ${between} were right`;
    return ["Verified in ", where, `: ${right}. Your photos and class names may differ.`];
  }
  const all = rows.find((row) => row.dataset === "all" && row.method === method);
  const [sure, right] = [all?.mean_confidence, all?.accuracy].map((value) => number(value, 1));
  const whole = all ? ` Overall: mean confidence ${sure}%, accuracy ${right}%.` : "";
  const few = `are between ${between}, too few to verify this`;
  return [`Only ${count(photos, "prediction")} in `, where, ` ${few}.${whole}`];
}

/** The bin (lo, hi] that contains the value. */
export function bin(edges, value) {
  for (let i = 0; i < edges.length - 1; i += 1) if (value <= edges[i + 1]) return i;
  return edges.length - 2;
}
