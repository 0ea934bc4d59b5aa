// From "at most so many errors" to a confidence threshold.

/**
 * The point of the curve with the largest coverage whose risk is at most `target`, or null when there is none.
 * Risk does not only rise with coverage, so every point is looked at.
 */
export function choose(curve, target) {
  let best = null;
  curve.coverage.forEach((coverage, i) => {
    const risk = curve.risk[i];
    // A share of errors such as 0.05 may come as 0.05000000000000001.
    if (risk <= target + 1e-9 && (best === null || coverage > best.coverage)) {
      best = { threshold: curve.threshold[i], coverage, risk };
    }
  });
  return best;
}

/** The smallest risk that the curve reaches anywhere. */
export const least = (curve) => Math.min(...curve.risk);
