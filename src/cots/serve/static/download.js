// The results of several photos as a file, with the keys of `cots predict`.

import { h } from "./dom.js";

const COLUMNS = [
  "file", "label", "confidence", "abstained", "tau", "alpha", "method", "in_list", "none_of_these", "agreement",
  "views_used", "confidence_low", "confidence_high", "label_set", "node", "rank", "path", "node_probability", "error",
];

/** The two buttons; `outcomes` may still grow. */
export function downloads(outcomes) {
  const button = (name, type, write) => {
    const onclick = () => save(`predictions.${name.toLowerCase()}`, type, write(records(outcomes)));
    return h("button", { type: "button", onclick }, name);
  };
  return h(
    "p",
    { class: "saves" },
    h("span", { class: "soft" }, "Download"),
    button("CSV", "text/csv", csv),
    button("JSON", "application/json", (all) => `${JSON.stringify(all, null, 1)}\n`),
  );
}

/** One record per photo and method; one per photo that failed. */
export function records(outcomes) {
  return outcomes.flatMap(({ photo, answer, problem }) => {
    const file = photo.file.name || "pasted photo";
    if (!answer) return [{ file, label: null, error: problem }];
    // The server answers for the whole photo, so presence of each class is never known.
    const rest = { presence: null, error: null };
    // id and ask are for the monitor, the others for the page.
    return answer.results.map(({ id, ask, milliseconds, under_policy, ...result }) => ({ file, ...result, ...rest }));
  });
}

function csv(all) {
  const most = Math.max(0, ...all.map(({ top }) => top?.length ?? 0));
  const ranks = Array.from({ length: most }, (_, i) => i);
  const head = [...COLUMNS, ...ranks.flatMap((i) => [`class_${i + 1}`, `probability_${i + 1}`])];
  const lines = all.map((record) => {
    const [low, high] = record.confidence_range ?? [];
    const row = { ...record, confidence_low: low, confidence_high: high };
    const ranked = ranks.flatMap((i) => [record.top?.[i]?.class, record.top?.[i]?.probability]);
    return [...COLUMNS.map((name) => row[name]), ...ranked].map(cell).join(",");
  });
  return `${[head.join(","), ...lines].join("\n")}\n`;
}

function cell(value) {
  const text = Array.isArray(value) ? value.join("|") : String(value ?? "");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function save(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
