// Entry point: tabs, token, model name, then the contents of both tabs.

import { get, onTokenWanted } from "./api.js";
import { $, h, put, tell } from "./dom.js";
import { loadLists } from "./lists.js";
import { openMonitor } from "./monitor.js";
import { connected, loadMethods, watchForm } from "./predict.js";
import { openRuns } from "./runs.js";

const TABS = ["photo", "runs"];

function show(name) {
  for (const tab of TABS) {
    const on = tab === name;
    $(`tab-${tab}`).setAttribute("aria-selected", on);
    $(`tab-${tab}`).tabIndex = on ? 0 : -1;
    $(`panel-${tab}`).hidden = !on;
  }
}

/** The address decides what is shown, so the back button and links work. */
function follow() {
  const [tab, id] = location.hash.slice(1).split("/", 2);
  if (tab !== "runs") return tab === "content" ? undefined : show("photo");
  show("runs");
  return guarded(() => openRuns(id ? decodeURIComponent(id) : null));
}

function watchTabs() {
  for (const [place, tab] of TABS.entries()) {
    const button = $(`tab-${tab}`);
    button.addEventListener("keydown", (event) => {
      const to = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: TABS.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const next = TABS[(to + TABS.length) % TABS.length];
      location.hash = next;
      $(`tab-${next}`).focus();
    });
  }
  addEventListener("hashchange", follow);
}

function watchToken() {
  let waiting = null;
  onTokenWanted((wrong) => {
    tell($("token-error"), wrong ? "Wrong token. Check it and try again." : null);
    waiting ??= new Promise((resolve) => {
      const form = $("token-form");
      const done = (event) => {
        event.preventDefault();
        const value = $("token-value").value.trim();
        if (!value) return tell($("token-error"), "Enter the token.");
        form.removeEventListener("submit", done);
        $("token").close();
        $("token-value").value = "";
        waiting = null;
        resolve(value);
      };
      form.addEventListener("submit", done);
      $("token").showModal();
      $("token-value").focus();
    });
    return waiting;
  });
  $("token").addEventListener("cancel", (event) => event.preventDefault()); // nothing works without it
}

/** Run `work`; show its error at the top of the page. */
async function guarded(work) {
  try {
    await work();
  } catch (error) {
    const again = h("button", { type: "button", onclick: start }, "Try again");
    put($("server-error"), h("span", null, error.message), again);
    $("server-error").hidden = false;
    return false;
  }
  tell($("server-error"), null);
  return true;
}

async function about() {
  const { models } = await get("/v1/models");
  const model = models.find((one) => one.default) ?? models[0];
  const hash = h("code", { title: `weights ${model.weights_hash}` }, model.weights_hash.slice(0, 12));
  put($("model"), "model ", h("b", null, model.name), " ", hash);
  const { version } = await get("/healthz");
  $("version").textContent = `cots ${version}`;
}

async function start() {
  follow();
  const works = await guarded(async () => {
    await loadLists();
    await about();
    await loadMethods();
  });
  connected(works);
  if (works) await openMonitor();
}

watchTabs();
watchToken();
watchForm(start);
start();
