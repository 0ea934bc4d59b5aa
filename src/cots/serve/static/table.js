// A table that sorts by its headings.

import { h, put } from "./dom.js";

/**
 * columns: {name, title, value(row), show(row), text?, first?}; `first` is the order that the first click gives.
 * The rows keep the caller's order until a heading is chosen.
 */
export function sortable(caption, columns, rows) {
  const body = h("tbody");
  let by = null;
  let up = true;
  const cell = (column, row) =>
    column.text ? h("th", { scope: "row" }, column.show(row)) : h("td", null, column.show(row));
  const heads = columns.map((column) => {
    const button = h("button", { type: "button" }, column.title, h("span", { class: "order", "aria-hidden": "true" }));
    button.addEventListener("click", () => {
      up = by === column ? !up : column.first !== "down";
      by = column;
      draw();
    });
    return h("th", { scope: "col", "data-column": column.name, class: column.text ? "text" : null }, button);
  });
  function draw() {
    const value = (row) => by.value(row) ?? Number.NEGATIVE_INFINITY;
    const order = (a, b) => (by.text ? String(by.value(a)).localeCompare(String(by.value(b))) : value(a) - value(b));
    const sorted = by ? [...rows].sort((a, b) => (up ? order(a, b) : order(b, a))) : rows;
    put(body, sorted.map((row) => h("tr", null, columns.map((column) => cell(column, row)))));
    heads.forEach((head, i) => {
      const on = columns[i] === by;
      if (on) head.setAttribute("aria-sort", up ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
      head.querySelector(".order").textContent = on ? (up ? "▲" : "▼") : "";
    });
  }
  draw();
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", null, h("caption", { class: "tip" }, caption), h("thead", null, h("tr", null, heads)), body),
  );
}
