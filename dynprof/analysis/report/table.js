"use strict";
// A table that can be searched, and sorted by any column.

const FIRST_ROWS = 10;  // until it is unfolded

class SortedTable {
  /** `columns`: [title, format of a value]; `rows` of values, sorted by column `by`; null keeps their order. */
  constructor(target, columns, rows, by, label) {
    Object.assign(this, { columns, rows, by, ascending: false, all: false });
    this.search = element("input");
    Object.assign(this.search, { type: "search", placeholder: `Search ${label}` });
    this.search.setAttribute("aria-label", `Search ${label}`);
    this.count = element("output");
    const tools = element("div", "tools");
    tools.append(this.search, this.count);
    tools.hidden = rows.length <= FIRST_ROWS;
    const table = element("table"), head = element("thead"), line = element("tr");
    this.heads = columns.map(([title], place) => {
      const cell = element("th"), button = element("button", "", title);
      cell.scope = "col";
      button.type = "button";
      button.addEventListener("click", () => this.sort(place));
      cell.append(button);
      line.append(cell);
      return cell;
    });
    head.append(line);
    this.body = element("tbody");
    table.append(head, this.body);
    const scroll = element("div", "scroll");
    scroll.append(table);
    this.more = element("button", "more");
    this.more.type = "button";
    this.more.addEventListener("click", () => { this.all = true; this.draw(); this.search.focus(); });
    this.search.addEventListener("input", () => this.draw());
    target.append(tools, scroll, this.more);
    this.draw();
  }

  sort(place) {
    const again = place === this.by;
    this.ascending = again ? !this.ascending : typeof this.rows[0][place] === "string";
    this.by = place;
    this.draw();
  }

  draw() {
    const words = this.search.value.trim().toLowerCase();
    const found = this.rows.filter((row) => row[0].toLowerCase().includes(words));
    if (this.by !== null) found.sort((a, b) => compare(a[this.by], b[this.by]) * (this.ascending ? 1 : -1));
    const shown = this.all ? found : found.slice(0, FIRST_ROWS);
    this.body.replaceChildren(...shown.map((row) => this.drawRow(row)));
    this.count.textContent = words ? `${found.length} of ${this.rows.length}` : "";
    this.more.hidden = shown.length === found.length;
    this.more.textContent = `Show all ${found.length}`;
    this.heads.forEach((head, place) => {
      if (place !== this.by) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", this.ascending ? "ascending" : "descending");
    });
  }

  drawRow(row) {
    const line = element("tr");
    this.columns.forEach(([, show], place) => {
      const cell = element("td");
      const shown = element("span");
      shown.append(...(place === 0 ? breakable(row[0]) : [show(row[place])]));
      cell.append(shown);
      if (place === 0) cell.title = row[0];
      line.append(cell);
    });
    return line;
  }
}

/** A name that a narrow column breaks between its parts, not between any two letters. */
function breakable(name) {
  return name.split(/(?<=[_.,:/<(#])(?![_.:/<(#])|(?<=[a-z])(?=[A-Z])/).flatMap((piece, place) => place ? [element("wbr"), piece] : [piece]);
}

function compare(a, b) {
  if (typeof a === "string" && typeof b === "string") return a.localeCompare(b);
  return (a ?? -Infinity) - (b ?? -Infinity);
}
