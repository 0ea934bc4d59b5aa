// The card of GET /v1/monitor: the error rate of what was acted on, and changes of the photos.

import { get } from "./api.js";
import { $, h, put } from "./dom.js";

const EVERY = 30_000; // milliseconds

/** Show the card if the server has a monitor or has seen a change, and keep it up to date. */
export async function openMonitor() {
  await refresh();
  setInterval(() => document.hidden || refresh(), EVERY);
}

async function refresh() {
  let found;
  try {
    found = await get("/v1/monitor");
  } catch {
    return; // the card keeps what it said; requests of the user show errors
  }
  const lines = [...errorLines(found.errors), ...changeLines(found.changes, found.errors)];
  $("monitor").hidden = lines.length === 0;
  put($("monitor-body"), lines);
}

function errorLines(errors) {
  if (!errors) return [];
  const waiting = errors.asked - errors.checked;
  const rest = waiting ? ` ${waiting} of ${errors.asked} asked labels have not come.` : "";
  const note = `Certain to ${100 * errors.level}% at every look, if the error rate is constant.${rest}`;
  return [h("p", { class: `rate ${errors.verdict}` }, errors.text), h("p", { class: "soft" }, note)];
}

function changeLines(changes, errors) {
  const alarms = changes.last.map((change) => h("p", { class: "changed" }, `Changed: ${change.text}.`));
  const promise = `A false alarm ever has probability ${100 * changes.false_alarms}% at most.`;
  if (alarms.length) return [...alarms, h("p", { class: "soft" }, `${promise} It says nothing about accuracy.`)];
  const none = changes.reference
    ? `No change in ${changes.predictions} photos. ${promise}`
    : `${changes.predictions} photos so far; the first 200 are the reference for changes.`;
  return errors ? [h("p", { class: "soft" }, none)] : [];
}
