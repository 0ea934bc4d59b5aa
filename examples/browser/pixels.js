// From the bytes of an image to the normalised pixels that preprocessor_config.json describes, with the resizing of Pillow: a
// browser's own resizing gives other pixels, and other confidences.

const SUPPORT = { 2: 1, 3: 2 }; // Pillow's numbers: bilinear, bicubic

function weight(x, resample) {
  const t = Math.abs(x);
  if (resample === 2) return t < 1 ? 1 - t : 0;
  if (t < 1) return (1.5 * t - 2.5) * t * t + 1;
  return t < 2 ? ((-0.5 * t + 2.5) * t - 4) * t + 2 : 0;
}

/** For each output pixel of an axis: the first input pixel, and the weights of it and those that follow. */
function axisWeights(from, to, resample) {
  const scale = from / to;
  const stretch = Math.max(scale, 1);
  const reach = SUPPORT[resample] * stretch;
  return Array.from({ length: to }, (_, i) => {
    const centre = (i + 0.5) * scale;
    const first = Math.max(0, Math.floor(centre - reach + 0.5));
    const end = Math.min(from, Math.floor(centre + reach + 0.5));
    const weights = [];
    for (let x = first; x < end; x++) weights.push(weight((x - centre + 0.5) / stretch, resample));
    const sum = weights.reduce((a, b) => a + b, 0);
    return { first, weights: weights.map((w) => w / sum) };
  });
}

/** Resize RGBA bytes: across, rounded to bytes, then down, as Pillow does. */
export function resize({ data, width, height }, newWidth, newHeight, resample) {
  const across = new Uint8ClampedArray(newWidth * height * 4);
  const columns = axisWeights(width, newWidth, resample);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < newWidth; x++) {
      const { first, weights } = columns[x];
      for (let c = 0; c < 4; c++) {
        let sum = 0;
        for (let k = 0; k < weights.length; k++) sum += weights[k] * data[4 * (y * width + first + k) + c];
        across[4 * (y * newWidth + x) + c] = sum;
      }
    }
  }
  const down = new Uint8ClampedArray(newWidth * newHeight * 4);
  const rows = axisWeights(height, newHeight, resample);
  for (let y = 0; y < newHeight; y++) {
    const { first, weights } = rows[y];
    for (let i = 0; i < 4 * newWidth; i++) {
      let sum = 0;
      for (let k = 0; k < weights.length; k++) sum += weights[k] * across[4 * newWidth * (first + k) + i];
      down[4 * newWidth * y + i] = sum;
    }
  }
  return { data: down, width: newWidth, height: newHeight };
}

/** Python's round: halves go to the even number. */
function roundEven(value) {
  const low = Math.floor(value);
  if (value - low !== 0.5) return Math.round(value);
  return low % 2 === 0 ? low : low + 1;
}

/** Normalised pixels, float32 (3,height,width), of RGBA bytes with their width and height. */
export function toPixels(bytes, processor) {
  const { size, crop_size: crop, resample, image_mean: mean, image_std: std } = processor;
  let resized;
  let left = 0;
  let top = 0;
  if (size.shortest_edge) {
    const short = Math.min(bytes.width, bytes.height);
    const width = Math.floor((size.shortest_edge * bytes.width) / short);
    const height = Math.floor((size.shortest_edge * bytes.height) / short);
    resized = resize(bytes, width, height, resample);
    left = roundEven((width - crop.width) / 2);
    top = roundEven((height - crop.height) / 2);
  } else {
    resized = resize(bytes, size.width, size.height, resample);
  }
  const { width, height } = crop ?? size;
  const data = new Float32Array(3 * width * height);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const from = 4 * ((top + y) * resized.width + left + x);
      for (let c = 0; c < 3; c++) {
        data[(c * height + y) * width + x] = (resized.data[from + c] / 255 - mean[c]) / std[c];
      }
    }
  }
  return { data, width, height };
}
