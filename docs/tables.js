// Long tables begin with their first rows, and a field above them finds others. A page of 580 rows was 39,500 pixels
// high on a phone.
document.addEventListener("DOMContentLoaded", () => {
  const SHOWN = 12;
  for (const table of document.querySelectorAll(".md-typeset table")) {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < 2 * SHOWN) continue;
    table.dataset.long = "";  // a class would take it out of the styles of the theme
    const field = document.createElement("input");
    const said = document.createElement("p");
    field.type = "search";
    field.className = "table-search";
    field.placeholder = `Search ${rows.length} rows`;
    field.setAttribute("aria-label", field.placeholder);
    said.className = "table-said";
    said.setAttribute("aria-live", "polite");
    const texts = rows.map((row) => row.textContent.toLowerCase());
    const all = document.createElement("button");
    let whole = false;
    all.className = "md-button table-all";
    all.type = "button";
    const show = () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      const found = rows.filter((_, at) => words.every((word) => texts[at].includes(word)));
      const shown = new Set(whole ? found : found.slice(0, SHOWN));
      for (const row of rows) row.hidden = !shown.has(row);
      said.textContent = shown.size < found.length ? `${shown.size} of ${found.length} rows` : `${found.length} rows`;
      all.hidden = found.length <= SHOWN;
      all.textContent = whole ? "Show fewer" : "Show all";
    };
    all.addEventListener("click", () => { whole = !whole; show(); });
    field.addEventListener("input", show);
    table.before(field, said);
    table.after(all);
    show();
  }
});
