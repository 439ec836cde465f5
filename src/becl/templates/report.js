"use strict";
// Tables sort by a column when its heading is clicked: numbers from the highest, words from the first.
// A figure that is tapped becomes larger on a phone, and whole again.
// An address that ends in #sort=TABLE:COLUMN opens sorted, with a "-" before COLUMN the other way round.

function valueOf(row, column) {
  const cell = row.cells[column];
  const text = cell.dataset.value ?? cell.textContent.trim();
  if (text === "" || text === "–") return null;
  const number = Number(text);
  return Number.isNaN(number) ? text : number;
}

function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), undefined, { numeric: true });
}

function sortBy(table, column) {
  const heading = table.tHead.rows[0].cells[column];
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => ({ row, value: valueOf(row, column) }));
  const numeric = rows.every(({ value }) => value === null || typeof value === "number");
  const now = heading.getAttribute("aria-sort");
  const direction = now ? (now === "ascending" ? "descending" : "ascending") : numeric ? "descending" : "ascending";
  const sign = direction === "ascending" ? 1 : -1;
  rows.sort((a, b) => {
    if (a.value === null || b.value === null) return (a.value === null) - (b.value === null); // Empty ones stay last.
    return sign * compare(a.value, b.value);
  });
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", direction);
  body.append(...rows.map(({ row }) => row));
}

function followAddress() {
  const wanted = decodeURIComponent(location.hash.slice(1));
  const sort = wanted.match(/^sort=([\w-]+):(-?)(\d+)$/);
  const target = document.getElementById(sort ? sort[1] : wanted);
  if (!target) return;
  const folded = target.closest("details");
  if (folded) folded.open = true;
  if (sort && target.tHead.rows[0].cells[sort[3]]) {
    const button = target.tHead.rows[0].cells[sort[3]].querySelector("button");
    button.click();
    if (sort[2]) button.click();
  }
  target.scrollIntoView();
}

for (const table of document.querySelectorAll("table.sortable")) {
  Array.from(table.tHead.rows[0].cells).forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => sortBy(table, column));
  });
}
for (const image of document.querySelectorAll("figure img")) {
  image.addEventListener("click", () => image.parentElement.classList.toggle("larger"));
}
addEventListener("hashchange", followAddress);
// What is folded is printed too.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => (one.open = true)));
followAddress();
