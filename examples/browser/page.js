// The page: the photo stays in the browser, and nothing is loaded from other hosts.
import * as ort from "./node_modules/onnxruntime-web/dist/ort.wasm.min.mjs";
import { toPixels } from "./pixels.js";

const SHOWN = 5;
const element = (id) => document.getElementById(id);
const percent = (share) => `${(100 * share).toFixed(1)}%`;

async function readJson(name) {
  const response = await fetch(`model/${name}`);
  if (!response.ok) throw new Error(`model/${name} is missing; export a classifier to the folder model`);
  return response.json();
}

async function load() {
  const [config, processor] = await Promise.all([readJson("config.json"), readJson("preprocessor_config.json")]);
  ort.env.wasm.numThreads = 1;
  const session = await ort.InferenceSession.create("model/model.onnx");
  return { config, processor, session };
}

/** The bytes of an image, upright, with transparent parts on white. */
function decode(image) {
  const canvas = document.createElement("canvas");
  canvas.width = image.width;
  canvas.height = image.height;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white";
  context.fillRect(0, 0, image.width, image.height);
  context.drawImage(image, 0, 0);
  return context.getImageData(0, 0, image.width, image.height);
}

/** Classes with their probabilities, best first, and the none-of-these score of an image. */
async function classify({ config, processor, session }, image) {
  const { data, height, width } = toPixels(decode(image), processor);
  const pixels = new ort.Tensor("float32", data, [1, 3, height, width]);
  const outputs = await session.run({ pixel_values: pixels });
  const ranked = Array.from(outputs.probabilities.data, (p, k) => ({ name: config.id2label[k], p }));
  ranked.sort((a, b) => b.p - a.p);
  return { ranked, inList: outputs.in_list.data[0] };
}

function show({ ranked, inList }, { threshold, milliseconds }) {
  const outside = inList < threshold ? " Perhaps none of these." : "";
  element("answer").dataset.inList = inList;
  element("answer").textContent = `${ranked[0].name}, ${percent(ranked[0].p)} sure.${outside} (${milliseconds} ms)`;
  const rows = ranked.slice(0, SHOWN).map(({ name, p }) => {
    const row = document.createElement("tr");
    const bar = document.createElement("progress");
    bar.value = p;
    for (const content of [name, bar, percent(p)]) row.insertCell().append(content);
    return row;
  });
  element("classes").replaceChildren(...rows);
}

async function main() {
  const model = await load();
  const about = model.config.cots;
  element("about").textContent = `${model.config.num_labels} classes, ${about.model}; the photo stays on this machine.`;
  element("file").disabled = false;
  element("file").addEventListener("change", async ({ target }) => {
    const image = await createImageBitmap(target.files[0], { colorSpaceConversion: "none" });
    element("answer").textContent = "";
    element("shown").src = URL.createObjectURL(target.files[0]);
    element("shown").hidden = false;
    const began = performance.now();
    const result = await classify(model, image);
    const milliseconds = Math.round(performance.now() - began);
    show(result, { threshold: about.in_list_threshold, milliseconds });
  });
}

main().catch((error) => { element("about").textContent = `${error.message}.`; });
