// Reliability diagrams and risk-coverage curves as inline SVG; colours come from the style sheet.

import { listed, percent, s } from "./dom.js";

export const NARROW = "(max-width: 600px)";

const SIZE = 220;
const STRIP = 48;
const LEFT = 34;
const TOP = 30;
const GAP = 24;

/** Accuracy in each bin of confidence, the gap to the diagonal, and the number of predictions underneath. */
export function reliability(bins, title, row) {
  const total = bins.count.reduce((a, b) => a + b, 0);
  const lean = total ? sum(bins, (i) => bins.count[i] * (bins.confidence[i] - bins.accuracy[i])) / total : 0;
  const spoken =
    `Reliability of ${title}: ${total} predictions in ${bins.count.length} bins, on average ` +
    `${Math.abs(100 * lean).toFixed(1)} points ${lean > 0 ? "over" : "under"}confident.`;
  const height = TOP + SIZE + GAP + STRIP + 38;
  const text = (kind, x, y, words, anchor = "start") => s("text", { class: kind, x, y, "text-anchor": anchor }, words);
  return s(
    "svg",
    { class: "reliability", role: "img", viewBox: `0 0 ${SIZE + LEFT + 14} ${height}`, "aria-label": spoken },
    text("name", LEFT, 17, title),
    row ? text("note", LEFT + SIZE, 17, `ECE ${row.ece.toFixed(1)}%`, "end") : null,
    s(
      "g",
      { transform: `translate(${LEFT},${TOP})` },
      bins.count.map((n, i) => column(bins, i, n)),
      s("path", { class: "diagonal", d: `M0 ${SIZE} L${SIZE} 0` }),
      s("rect", { class: "frame", width: SIZE, height: SIZE }),
      [0, 50, 100].map((p) => [
        text("tick", -6, SIZE * (1 - p / 100) + 4, String(p), "end"),
        text("tick", (SIZE * p) / 100, SIZE + 14, String(p), "middle"),
      ]),
      s("g", { transform: `translate(0,${SIZE + GAP})` }, counts(bins)),
    ),
    row ? text("note", LEFT, height - 5, note(row)) : null,
  );
}

const note = (row) => `accuracy ${row.accuracy.toFixed(1)}%, mean confidence ${row.mean_confidence.toFixed(1)}%`;

const sum = (bins, value) => bins.count.reduce((total, n, i) => (n ? total + value(i) : total), 0);

function column(bins, i, n) {
  const [low, high] = [bins.edges[i], bins.edges[i + 1]];
  const x = SIZE * low + 0.5;
  const width = SIZE * (high - low) - 1;
  const range = `${percent(low, 0)} to ${percent(high, 0)}`;
  if (!n) return s("path", { class: "empty", d: `M${x + width / 2} ${SIZE} v-5` }, s("title", null, `${range}: empty`));
  const [confidence, accuracy] = [bins.confidence[i], bins.accuracy[i]];
  const lean = confidence > accuracy ? "over" : "under";
  const [bottom, top] = [Math.min(confidence, accuracy), Math.max(confidence, accuracy)];
  const words = `${range}: ${n} predictions, accuracy ${percent(accuracy)}, mean confidence ${percent(confidence)}`;
  return s(
    "g",
    { class: "bin" },
    s("title", null, words),
    s("rect", { class: "acc", x, y: SIZE * (1 - bottom), width, height: SIZE * bottom }),
    s("rect", { class: lean, x, y: SIZE * (1 - top), width, height: SIZE * (top - bottom) }),
  );
}

const middle = (kind, x, y, words) => s("text", { class: kind, x, y, "text-anchor": "middle" }, words);

function counts(bins) {
  const most = Math.max(1, ...bins.count);
  return [
    bins.count.map((n, i) => {
      const tall = (STRIP * n) / most;
      const [x, width] = [SIZE * bins.edges[i] + 0.5, SIZE * (bins.edges[i + 1] - bins.edges[i]) - 1];
      return s("rect", { class: "count", x, y: STRIP - tall, width, height: tall });
    }),
    s("path", { class: "axis", d: `M0 ${STRIP} h${SIZE}` }),
    s("text", { class: "tick", x: -6, y: 9, "text-anchor": "end" }, String(most)),
    middle("tick", SIZE / 2, STRIP + 14, "confidence %, with counts"),
  ];
}

/** Error rate of the most confident predictions against coverage; `curves` are [name, colour, curve, choice]. */
export function riskCoverage(curves, target) {
  // A smaller drawing, instead of a scaled one, keeps the text readable on a phone.
  const [wide, tall] = matchMedia(NARROW).matches ? [270, 190] : [560, 250];
  const spoken = `Error rate against coverage for ${listed(curves.map(([name]) => name))}`;
  const steps = scale(curves, target);
  const most = steps[steps.length - 1];
  const x = (coverage) => wide * coverage;
  const y = (risk) => tall * (1 - Math.min(risk / most, 1));
  const line = (curve) => curve.coverage.map((c, i) => `${x(c).toFixed(1)} ${y(curve.risk[i]).toFixed(1)}`).join(" ");
  return s(
    "svg",
    { class: "chart", role: "img", viewBox: `-40 -24 ${wide + 56} ${tall + 64}`, "aria-label": spoken },
    steps.map((value) => [
      s("path", { class: "grid-line", d: `M0 ${y(value)} H${wide}` }),
      s("text", { class: "tick", x: -7, y: y(value) + 4, "text-anchor": "end" }, `${Number((100 * value).toFixed(2))}`),
    ]),
    [0, 25, 50, 75, 100].map((p) => middle("tick", x(p / 100), tall + 16, String(p))),
    s("text", { class: "note", x: -36, y: -10 }, "error rate of accepted predictions, %"),
    middle("note", wide / 2, tall + 34, "coverage %, most confident first"),
    s("path", { class: "axis", d: `M0 ${tall} H${wide}` }),
    s("path", { class: "target", d: `M0 ${y(target)} H${wide}` }),
    curves.map(([name, colour, curve]) => {
      const kind = `line s${colour % 8}${colour > 7 ? " dashed" : ""}`;
      return s("polyline", { class: kind, points: line(curve) }, s("title", null, name));
    }),
    curves.map(([name, colour, , choice]) => {
      if (!choice) return null;
      const words = s("title", null, `${name}: threshold ${percent(choice.threshold, 2)}`);
      return s("circle", { class: `dot s${colour % 8}`, cx: x(choice.coverage), cy: y(choice.risk), r: 5 }, words);
    }),
  );
}

/** Round steps to a little above the risk at full coverage, so that the noisy left end does not set the scale. */
function scale(curves, target) {
  const ends = curves.map(([, , curve]) => curve.risk[curve.risk.length - 1] ?? 0);
  const want = Math.max(0.02, 1.25 * target, 1.25 * Math.max(0, ...ends));
  const step = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25].find((one) => want / one <= 6) ?? 0.25;
  const steps = [];
  for (let value = 0; value < want + step - 1e-9; value += step) steps.push(value);
  return steps.filter((value) => value <= 1 + 1e-9);
}
