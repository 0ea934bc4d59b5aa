// Plain names of methods, with their codes beside them.

import { h } from "./dom.js";

const CALIBRATORS = { cots: "CoTS", ecots: "E-CoTS", sals: "SaLS", ts: "temperature", ensemble: "mean of views" };

/** "zero-shot" for zeroshot, "tuned + E-CoTS" for tpt+ecots, "tuned (otpt)" for otpt. */
export function plainName(method) {
  const [adapter, calibrator] = method.split("+");
  const base = { zeroshot: "zero-shot", tpt: "tuned" }[adapter] ?? `tuned (${adapter})`;
  return calibrator ? `${base} + ${CALIBRATORS[calibrator] ?? calibrator}` : base;
}

/** The plain name and the code, as nodes. */
export const named = (method) => [plainName(method), " ", h("code", { class: "soft" }, method)];
