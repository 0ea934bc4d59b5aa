"use strict";
const board = document.getElementById("board");
const body = board.tBodies[0];
const rows = [...body.rows];
const heads = [...board.tHead.rows[0].cells];
const dataset = document.getElementById("dataset");
const find = document.getElementById("find");
const count = document.getElementById("count");
let sorted = { head: null, worstFirst: false };

function show() {
  const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const fits = words.every((word) => row.dataset.words.includes(word));
    row.hidden = !(fits && (dataset.value === "" || row.dataset.of === dataset.value));
    shown += row.hidden ? 0 : 1;
  }
  for (const cell of board.querySelectorAll(".of")) cell.hidden = dataset.value !== "";
  count.textContent = `${shown} rows`;
}

function sortBy(head, worstFirst) {
  const at = heads.indexOf(head);
  const word = head.classList.contains("word");
  const key = (row) => row.cells[at].dataset.v;
  const number = (row) => (key(row) === "" ? -Infinity : Number(key(row)));
  const order = (a, b) => (word ? key(a).localeCompare(key(b)) : number(a) - number(b));
  const ascending = word !== worstFirst; // of what is sorted by: names, or how good a value is
  rows.sort((a, b) => (ascending ? order(a, b) : order(b, a)));
  body.append(...rows);
  for (const other of heads) other.removeAttribute("aria-sort");
  const rising = ascending !== ("lower" in head.dataset); // of what is shown
  head.setAttribute("aria-sort", rising ? "ascending" : "descending");
  sorted = { head, worstFirst };
}

for (const head of heads) {
  head.querySelector("button").addEventListener("click", () => {
    sortBy(head, sorted.head === head && !sorted.worstFirst); // first the best, or the first of the alphabet
  });
}
dataset.addEventListener("change", show);
find.addEventListener("input", show);
document.getElementById("filters").hidden = false;
dataset.selectedIndex = 1; // the first average, or the first dataset
show();
