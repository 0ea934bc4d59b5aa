// The form: checks, the request, and each error next to its field.

import { get, post } from "./api.js";
import { $, h, put, tell } from "./dom.js";
import { exampleTitle, names, useSampleList, watchLists } from "./lists.js";
import { named } from "./methods.js";
import { currentPhotos, watchPhoto } from "./photo.js";
import { concernsAll, reason } from "./reasons.js";
import { markOld, showFailure, showResults, showSeveral, showWorking } from "./results.js";

const FIELDS = { image: "file", classes: "classes", methods: "more", template: "template", top: "top", seed: "seed" };
const CHOSEN = "cots-methods";
const RETRIES = 5; // automatic ones; after that the user decides

let current = null;
let online = null; // whether the server has answered; null until then
let wanted = false; // "Classify" was pressed before that

export function watchForm(reconnect) {
  const changed = (field) => () => {
    mark(field, null);
    markOld();
  };
  watchPhoto(changed("image"), useSampleList);
  watchLists(changed("classes"));
  for (const [field, id] of Object.entries(FIELDS)) {
    if (field !== "image" && field !== "classes") $(id).addEventListener("input", changed(field));
  }
  $("methods").addEventListener("change", () => {
    localStorage.setItem(CHOSEN, ticked().join(","));
    changed("methods")();
  });
  $("form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (online) return send();
    wait(true);
    if (online === false) {
      online = null;
      reconnect();
    }
  });
  $("classes").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
  });
  $("send").disabled = false;
}

/** The server has answered, or cannot be reached: send what was wanted in the meantime, or give it up. */
export function connected(works) {
  const pressed = wanted;
  online = works;
  wait(false);
  if (works && pressed) send();
}

function wait(on) {
  wanted = on;
  $("send").textContent = on ? "Connecting" : "Classify";
  $("send").classList.toggle("busy", on);
}

export async function loadMethods() {
  const { adapters, calibrators, suggested } = await get("/v1/methods");
  const words = new Map([...adapters, ...calibrators].map(({ name, description }) => [name, description]));
  const about = (method) =>
    method
      .split("+")
      .map((part) => words.get(part))
      .filter(Boolean)
      .join("; then: ");
  const before = localStorage.getItem(CHOSEN)?.split(",") ?? suggested;
  put(
    $("methods"),
    suggested.map((method) => {
      const id = `method-${method.replace("+", "-")}`;
      const box = h("input", { type: "checkbox", id, value: method, checked: before.includes(method) });
      return h("div", { class: "check" }, box, h("label", { for: id, title: about(method) }, named(method)));
    }),
  );
  const entry = ({ name, description }) => [h("dt", null, h("code", null, name)), h("dd", null, description)];
  const group = (title, entries) => [
    h("h3", null, title),
    h("dl", null, entries.map(entry)),
  ];
  put(
    $("catalogue-body"),
    h("p", { class: "soft" }, "A method is an adapter, or adapter+calibrator, such as otpt+cots."),
    group("Adapters", adapters),
    group("Calibrators", calibrators),
  );
  $("catalogue").hidden = false;
}

const ticked = () => [...$("methods").querySelectorAll("input:checked")].map((box) => box.value);

function chosenMethods() {
  const typed = $("more").value.split(/[,\s]+(?![^(]*\))/).filter(Boolean); // not inside (k=4,t0=2)
  return [...new Set([...ticked(), ...typed])];
}

function check() {
  const wrong = {};
  if (!currentPhotos().length) wrong.image = "Choose a photo first, or drop or paste one.";
  if (!names($("classes").value).length) {
    wrong.classes = "Enter at least one class name, one per line, or choose a list.";
  }
  if (!chosenMethods().length) wrong.methods = "Select at least one method, or enter one.";
  for (const field of Object.keys(FIELDS)) mark(field, wrong[field]);
  const first = Object.keys(wrong)[0];
  if (first) focusOn(first);
  return !first;
}

function body(photo) {
  const form = new FormData();
  form.append("image", photo, photo.name || "pasted.png");
  form.append("classes", names($("classes").value).join("\n"));
  form.append("methods", chosenMethods().join(","));
  form.append("template", $("template").value);
  form.append("top", $("top").value);
  form.append("seed", $("seed").value);
  form.append("thumbnails", "true");
  form.append("ranges", "true");
  return form;
}

async function send(refused = 0) {
  current?.abort();
  tell($("error-general"), null);
  if (!check()) return;
  const mine = new AbortController();
  current = mine;
  busy(true);
  try {
    const photos = currentPhotos();
    if (photos.length > 1) await sendAll(photos, mine);
    else {
      const answer = await ask(photos[0], mine);
      if (current === mine) showResults(answer);
    }
  } catch (error) {
    if (error.name === "AbortError") return;
    if (error.retry) retryLater(error, refused + 1);
    else explain(error);
  } finally {
    if (current === mine) busy(false);
  }
}

/** One photo after the other, so that each answer is shown as it comes; a failed photo does not stop the others. */
async function sendAll(photos, mine) {
  const add = showSeveral(photos.length);
  for (const photo of photos) {
    const outcome = await sendOne(photo, mine);
    if (current !== mine) return;
    add(outcome);
  }
}

/** The server's answer, with the title of the example list that was sent, if it was one. */
async function ask(photo, mine) {
  const list = exampleTitle();
  return { ...(await post("/v1/predict", body(photo.file), { signal: mine.signal })), list };
}

async function sendOne(photo, mine) {
  for (let refused = 0; ; refused += 1) {
    try {
      return { photo, answer: await ask(photo, mine) };
    } catch (error) {
      if (error.name === "AbortError" || concernsAll(error)) throw error;
      if (!error.retry || refused >= RETRIES) return { photo, answer: null, problem: reason(error) };
      await new Promise((resolve) => setTimeout(resolve, 1000 * error.retry));
    }
  }
}

function busy(on) {
  $("send").textContent = on ? "Classifying" : "Classify";
  $("send").classList.toggle("busy", on);
  $("output").setAttribute("aria-busy", on);
  if (on) showWorking();
  else current = null;
}

function explain(error) {
  const field = error.code === "body_too_large" ? "image" : error.field;
  if (field in FIELDS) {
    const message = error.message.replace(/^image bytes/, currentPhotos()[0]?.file.name || "The photo");
    mark(field, message);
    showFailure(message);
    focusOn(field);
    return;
  }
  showFailure(error.message);
  const again = h("button", { type: "button", onclick: () => send() }, "Try again");
  put($("error-general"), h("span", null, error.message), again);
  $("error-general").hidden = false;
}

/** Count down and retry; the user can retry now or cancel. */
function retryLater(error, refused) {
  let left = refused > RETRIES ? null : error.retry;
  const words = h("span");
  showFailure("The server is busy.");
  const show = () => {
    const next = left === null ? "Try again later." : `Retrying in ${left} s.`;
    words.textContent = `The server is busy. ${next}`;
  };
  const stop = () => {
    clearInterval(timer);
    document.removeEventListener("submit", stop, true);
  };
  const timer = setInterval(() => {
    if (left === null) return;
    left -= 1;
    if (left > 0) return show();
    stop();
    send(refused);
  }, 1000);
  document.addEventListener("submit", stop, true);
  const button = (label, kind, action) =>
    h("button", { type: "button", class: kind, onclick: () => (stop(), action()) }, label);
  const now = button("Retry now", null, send);
  const never = button("Cancel", "quiet", () => tell($("error-general"), null));
  show();
  put($("error-general"), words, now, left === null ? null : never);
  $("error-general").hidden = false;
}

function mark(field, message) {
  tell($(`error-${field}`), message);
  const input = $(FIELDS[field]);
  if (message) input.setAttribute("aria-invalid", "true");
  else input.removeAttribute("aria-invalid");
  $(`field-${field}`).classList.toggle("wrong", Boolean(message));
}

function focusOn(field) {
  if (["methods", "template", "top", "seed"].includes(field)) $("options").open = true;
  $(FIELDS[field]).focus();
}
