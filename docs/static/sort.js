// Tables are sorted by the column whose heading is clicked, and once more the other way.
document.addEventListener("DOMContentLoaded", () => {
  const number = (cell) => parseFloat(cell.textContent.replace("−", "-"));
  const order = (a, b) => {
    const [x, y] = [number(a), number(b)];
    if (Number.isNaN(x) && Number.isNaN(y)) return a.textContent.localeCompare(b.textContent);
    return Number.isNaN(x) ? 1 : Number.isNaN(y) ? -1 : x - y; // what has no number comes last
  };
  for (const table of document.querySelectorAll("article table")) {
    if (table.tBodies.length !== 1 || table.tBodies[0].rows.length < 4) continue;
    table.classList.toggle("wide", table.querySelectorAll("thead th").length > 7);
    table.querySelectorAll("thead th").forEach((heading, column) => {
      heading.style.cursor = "pointer";
      heading.tabIndex = 0;
      heading.title = "sort";
      const sort = () => {
        const down = heading.getAttribute("aria-sort") === "ascending";
        table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const rows = [...body.rows].sort((a, b) => {
          const [x, y] = [a.cells[column], b.cells[column]];
          const empty = Number.isNaN(number(x)) !== Number.isNaN(number(y));
          return empty || !down ? order(x, y) : order(y, x);
        });
        body.append(...rows);
      };
      heading.addEventListener("click", sort);
      heading.addEventListener("keydown", (event) => {
        if (event.key === "Enter") sort();
      });
    });
  }
});
