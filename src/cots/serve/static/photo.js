// The photos: chosen, dropped anywhere on the page, pasted, or samples.

import { $, count, h, put, tell } from "./dom.js";

const MOST = 100;
const PLACES = 8; // in the preview of several photos

let photos = []; // { file, address }

/** Listen for photos; `changed()` is called when the choice changes, `sampled(name)` when it is a sample. */
export function watchPhoto(changed, sampled) {
  const take = (files) => {
    const given = [...files];
    const images = given.filter((one) => one.type.startsWith("image/"));
    const chosen = images.length ? images : given.slice(0, 1);
    if (!chosen.length) return;
    show(chosen.slice(0, MOST), changed);
    if (chosen.length > MOST) tell($("error-image"), `Only the first ${MOST} of ${chosen.length} photos are used.`);
  };
  $("file").addEventListener("change", (event) => {
    take(event.target.files);
    event.target.value = ""; // so the same file can be chosen again after it was removed
  });
  document.addEventListener("paste", (event) => {
    const files = event.clipboardData?.files ?? [];
    if (!files.length) return; // text goes into the field that has the focus
    event.preventDefault();
    take(files);
  });
  // A file dropped outside the box would otherwise replace the page.
  document.addEventListener("dragover", (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    $("drop").classList.add("over");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) $("drop").classList.remove("over");
  });
  document.addEventListener("drop", (event) => {
    $("drop").classList.remove("over");
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    take(event.dataTransfer.files);
  });
  showSamples(take, sampled);
}

export const currentPhotos = () => photos;

/** Photos that ship with cots. */
async function showSamples(take, sampled) {
  const answer = await fetch("/static/samples.json").catch(() => null);
  const names = answer?.ok ? Object.keys(await answer.json()) : [];
  if (!names.length) return;
  const button = (name) => {
    const src = `/static/sample-${name}.jpg`;
    const choose = async () => {
      const data = await (await fetch(src)).blob();
      take([new File([data], `${name}.jpg`, { type: "image/jpeg" })]);
      sampled(name);
    };
    return h(
      "button",
      { type: "button", class: "sample", "aria-label": `Sample photo: ${name}`, onclick: choose },
      h("img", { src, alt: "", width: 56, height: 56 }),
    );
  };
  put($("samples"), h("span", { class: "soft" }, "or try"), names.map(button));
  $("samples").hidden = false;
}

function show(files, changed) {
  forget();
  photos = files.map((file) => ({ file, address: URL.createObjectURL(file) }));
  put($("preview"), photos.length === 1 ? large(photos[0]) : small(photos), about(changed));
  $("preview").hidden = false;
  $("invite").firstElementChild.textContent = "Choose other photos";
  $("drop").classList.add("has");
  changed();
}

// Without a preview it is either a format that only the server can read, or not a photo; the server's response tells.
const noPreview = (image) => image.replaceWith(h("p", { class: "no-preview" }, "No preview"));

function large({ file, address }) {
  const image = h("img", { alt: `The photo ${file.name}`, src: address });
  image.addEventListener("load", () => {
    const size = `${image.naturalWidth} × ${image.naturalHeight}, ${bytes(file.size)}`;
    $("preview").querySelector(".size").textContent = size;
  });
  image.addEventListener("error", () => noPreview(image));
  return image;
}

function small(some) {
  const picture = ({ file, address }) => {
    const image = h("img", { src: address, alt: file.name, width: 64, height: 64 });
    image.addEventListener("error", () => noPreview(image));
    return image;
  };
  const pictures = some.length > PLACES ? some.slice(0, PLACES - 1) : some;
  const further = some.length - pictures.length;
  const more = further ? h("span", { class: "further soft" }, `+${further}`) : null;
  return h("div", { class: "chosen" }, pictures.map(picture), more);
}

function about(changed) {
  const one = photos.length === 1;
  const total = photos.reduce((sum, { file }) => sum + file.size, 0);
  const label = one ? "Remove the photo" : "Remove the photos";
  const remove = h("button", { type: "button", class: "quiet", "aria-label": label }, "Remove");
  remove.addEventListener("click", () => {
    forget();
    changed();
    $("file").focus();
  });
  const name = one ? photos[0].file.name || "pasted photo" : count(photos.length, "photo");
  return h("p", { class: "about" }, h("b", null, name), " ", h("span", { class: "soft size" }, bytes(total)), remove);
}

function forget() {
  for (const { address } of photos) URL.revokeObjectURL(address);
  photos = [];
  $("preview").hidden = true;
  put($("preview"));
  $("invite").firstElementChild.textContent = "Choose photos";
  $("drop").classList.remove("has");
}

const bytes = (n) => (n < 1e6 ? `${Math.max(1, Math.round(n / 1e3))} kB` : `${(n / 1e6).toFixed(1)} MB`);
