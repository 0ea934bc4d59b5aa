// From an acceptable error rate to a confidence threshold.

/**
 * The point of the curve with the largest coverage whose risk is at most `target`, or null when there is none.
 * Risk is not monotonic in coverage, so every point counts.
 */
export function choose(curve, target) {
  let best = null;
  curve.coverage.forEach((coverage, i) => {
    const risk = curve.risk[i];
    // An error rate of 0.05 may arrive as 0.05000000000000001.
    if (risk <= target + 1e-9 && (best === null || coverage > best.coverage)) {
      best = { threshold: curve.threshold[i], coverage, risk, low: curve.low[i], high: curve.high[i] };
    }
  });
  return best;
}

/** The smallest risk that the curve reaches anywhere. */
export const least = (curve) => Math.min(...curve.risk);
