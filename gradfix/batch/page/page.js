"use strict";
// Tables are sorted by a click on their head; the filter hides rows and repositories without the words.
const value = cell => cell.dataset.sort ?? cell.textContent.trim();
const order = (a, b) => (isNaN(a) || isNaN(b) || a === "" || b === "") ? a.localeCompare(b) : a - b;
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => (up ? 1 : -1) * order(value(a.cells[column]), value(b.cells[column])));
      table.tBodies[0].append(...rows);
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
  });
}
document.getElementById("filter").addEventListener("input", event => {
  const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const part of document.querySelectorAll("tbody tr, section.repo")) {
    const text = part.textContent.toLowerCase();
    part.hidden = !words.every(word => text.includes(word));
  }
});
