// One sentence: what the confidence means, and where that was verified.

import { get } from "./api.js";
import { count, h, number, percent, put } from "./dom.js";

const FEW = 20; // photos in a bin; fewer are not evidence
export const ENOUGH = 200; // photos in a run; fewer are not enough to verify

// Accuracy and mean confidence in percent on all test photos, three seeds, from docs/results.md.
export const CHECKED = {
  c895ab454030: {
    name: "mini",
    photos: 3145,
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

/** Write the sentence for `result` into `node`; a run with more photos than the model's card replaces the card. */
export async function meaning(node, { model, classes }, result) {
  if (classes === 1) {
    put(node, "With one class, the confidence is always 100% and means nothing.");
    return;
  }
  const promise = `Out of 100 photos of these classes with this confidence, ${of100(result.confidence)} should be right.`;
  const known = card(model, result);
  put(node, known ? [promise, " ", known.words] : unverified(model, result));
  const found = await fromRuns(model, result, known?.photos ?? ENOUGH - 1).catch(() => null);
  if (found) put(node, promise, " ", found);
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
    const words = `Verified for ${known.name} with ${method} on ${known.where}: ${found}. ${rest}`;
    return { photos: known.photos, words };
  }
  return null;
}

const unverified = (model, { method }) => [
  `This confidence has not been verified for ${method} with ${model.name}; `,
  h("a", { href: "#runs" }, "a run"),
  ` on ${ENOUGH} or more labelled photos would verify it.`,
];

/** The bin of this confidence in the finished run of the same weights and method that has the most photos. */
async function fromRuns(model, { method, confidence }, photosBefore) {
  const { runs } = await get("/v1/runs");
  const usable = runs
    .filter((run) => run.complete && run.weights_hash === model.weights_hash && run.methods.includes(method))
    .filter((run) => run.photos > photosBefore)
    .sort((a, b) => b.photos - a.photos || String(b.created).localeCompare(String(a.created)));
  if (!usable.length) return null;
  const { id, photos: total } = usable[0];
  const { reliability, rows } = await get(`/v1/runs/${encodeURIComponent(id)}`);
  const bins = reliability.all?.[method];
  if (!bins) return null;
  const at = bin(bins.edges, confidence);
  const photos = bins.count[at];
  const between = `${percent(bins.edges[at], 0)} and ${percent(bins.edges[at + 1], 0)}`;
  const where = ["run ", h("a", { href: `#runs/${id}` }, id), ` on ${count(total, "photo")}`];
  if (photos >= FEW) {
    const interval = `95% interval ${percent(bins.low[at], 0)} to ${percent(bins.high[at], 0)}`;
    const right = `${percent(bins.accuracy[at], 0)} of its ${photos} predictions between ${between} were right`;
    return ["Verified in ", where, `: ${right} (${interval}). Your photos and class names may differ.`];
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
