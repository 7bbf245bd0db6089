"use strict";
// The tree of modules: a table whose rows open and close.

class ModuleTree {
  /** `columns`: [title, format of a value, its index in a row]; `by`: the weight by which rows open. */
  constructor(target, title, columns, rows, by) {
    this.columns = columns;
    this.body = element("tbody");
    const table = element("table"), head = element("thead"), line = element("tr");
    for (const text of [title, ...columns.map(([one]) => one)]) {
      const cell = element("th", "", text);
      cell.scope = "col";
      line.append(cell);
    }
    head.append(line);
    table.setAttribute("role", "treegrid");
    table.append(head, this.body);
    const scroll = element("div", "scroll");
    scroll.append(table);
    target.append(scroll);
    this.nodes = rows.map((row) => ({ row, level: 0, inside: [], open: false }));
    this.top = [];
    for (const node of this.nodes) {
      const above = this.nodes[node.row[1]];
      node.level = above ? above.level + 1 : 0;
      (above ? above.inside : this.top).push(node);
    }
    this.openWidest(by);
    this.draw();
  }

  /** Opens the largest rows, from the top down, as long as the table stays short. */
  openWidest(by) {
    let shown = this.top.length;
    const waiting = [...this.top];
    while (waiting.length) {
      waiting.sort((a, b) => by(a.row) - by(b.row));
      const node = waiting.pop();
      if (!node.inside.length || shown + node.inside.length > FIRST_ROWS) continue;
      node.open = true;
      shown += node.inside.length;
      waiting.push(...node.inside);
    }
  }

  draw() {
    const lines = [];
    const waiting = [...this.top].reverse();
    while (waiting.length) {
      const node = waiting.pop();
      lines.push(this.drawRow(node));
      if (node.open) waiting.push(...[...node.inside].reverse());
    }
    this.body.replaceChildren(...lines);
  }

  drawRow(node) {
    const line = element("tr");
    line.setAttribute("aria-level", node.level + 1);
    const name = element("td");
    const button = element("button", "opens");
    button.append(...breakable(node.row[0]));
    button.type = "button";
    button.style.setProperty("--level", node.level);
    button.disabled = node.inside.length === 0;
    if (node.inside.length) {
      button.setAttribute("aria-expanded", node.open);
      button.addEventListener("click", () => this.toggle(node));
    }
    node.button = button;
    name.append(button);
    line.append(name);
    for (const [, show, place] of this.columns) line.append(element("td", "", show(node.row[place])));
    return line;
  }

  toggle(node) {
    node.open = !node.open;
    this.draw();
    node.button.focus();
  }
}

function drawModules() {
  const { rows, count, of_labels: ofLabels, device, memory, flops, outside, unknown } = data.modules;
  section("modules").hidden = rows.length === 0;
  if (!rows.length) return;
  section("modules").querySelector("h2").textContent = ofLabels ? "By label" : "By module";
  const [noun, nouns] = ofLabels ? ["label", "labels"] : ["module", "modules"];
  const said = ["Times in ms over the whole capture, including everything inside. A backward pass counts for the " +
    `${noun} of its forward pass.`];
  if (ofLabels) said.push("No module was recorded; with_stack and with_modules record them.");
  if (rows.length < count) said.push(`The ${rows.length} largest of ${count}.`);
  if (device && outside) said.push(`${inMs(outside)} of the device's time belong to none of these ${nouns}.`);
  if (unknown) said.push(`For ${inMs(unknown)} of it the launches are not in the trace.`);
  part("modules", ".hint").textContent = said.join(" ");
  const columns = [["Calls", whole, 2]];
  if (device) columns.push(["Device, forward", time, 8], ["self", time, 7], ["Device, backward", time, 10], ["self", time, 9]);
  columns.push(["Host, forward", time, 4], ["self", time, 3], ["Host, backward", time, 6], ["self", time, 5]);
  if (memory) columns.push(["Allocated MB", time, 12]);
  if (flops) columns.push(["GFLOP", time, 14]);
  const by = device ? (row) => row[8] + row[10] : (row) => row[4] + row[6];
  new ModuleTree(part("modules", ".table"), ofLabels ? "Label" : "Module", columns, rows, by);
}
