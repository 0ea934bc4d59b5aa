// The photo: chosen, dropped anywhere on the page, or pasted.

import { $, h, put } from "./dom.js";

let photo = null;
let address = null;

/** Listen for photos; `changed(file)` is called for each, and with null when it is removed. */
export function watchPhoto(changed) {
  const take = (files) => {
    const file = [...files].find((one) => one.type.startsWith("image/")) ?? files[0];
    if (file) show(file, changed);
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
  // A file dropped beside the box would otherwise replace the page.
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
}

export const currentPhoto = () => photo;

function show(file, changed) {
  forget();
  photo = file;
  address = URL.createObjectURL(file);
  const size = h("span", { class: "soft" }, bytes(file.size));
  const image = h("img", { alt: `The photo ${file.name}`, src: address });
  image.addEventListener("load", () => {
    size.textContent = `${image.naturalWidth} × ${image.naturalHeight}, ${bytes(file.size)}`;
  });
  // Either a format that only the server can read, or not a photo; the server's response tells.
  image.addEventListener("error", () => image.replaceWith(h("p", { class: "no-preview" }, "No preview")));
  const remove = h("button", { type: "button", class: "quiet", "aria-label": "Remove the photo" }, "Remove");
  remove.addEventListener("click", () => {
    forget();
    changed(null);
    $("file").focus();
  });
  const about = h("p", { class: "about" }, h("b", null, file.name || "pasted photo"), " ", size, remove);
  put($("preview"), image, about);
  $("preview").hidden = false;
  $("invite").firstElementChild.textContent = "Choose another photo";
  $("drop").classList.add("has");
  changed(file);
}

function forget() {
  photo = null;
  if (address) URL.revokeObjectURL(address);
  address = null;
  $("preview").hidden = true;
  put($("preview"));
  $("invite").firstElementChild.textContent = "Choose a photo";
  $("drop").classList.remove("has");
}

const bytes = (n) => (n < 1e6 ? `${Math.max(1, Math.round(n / 1e3))} kB` : `${(n / 1e6).toFixed(1)} MB`);
