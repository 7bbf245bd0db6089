"use strict";
// A flame graph that grows downwards. A click makes a frame as wide as the graph.

const ROW = 20, NARROWEST = 0.0008;

class FlameGraph {
  /**
   * `data`: names, and for each node the index of its name and of its parent, and its total in us.
   * If it also has the usual total of each node, colours show the difference.
   */
  constructor(section, data) {
    this.graph = section.querySelector(".graph");
    this.told = section.querySelector(".told");
    this.found = section.querySelector("output");
    this.reset = section.querySelector(".reset");
    this.search = section.querySelector("input");
    this.reset.addEventListener("click", () => this.show(this.top));
    this.search.addEventListener("input", () => this.show(this.shown));
    this.graph.addEventListener("click", (event) => this.onNode(event, (node) => this.zoom(node)));
    this.graph.addEventListener("keydown", (event) => this.onNode(event, (node) => this.move(event, node)));
    for (const kind of ["mouseover", "focusin"])
      this.graph.addEventListener(kind, (event) => this.onNode(event, (node) => this.describe(node)));
    this.load(data);
  }

  /** Shows other data of the same format. */
  load(data) {
    this.nodes = data.name.map((name, place) => ({
      name: data.names[name], parent: data.parent[place], total: data.total[place], children: [],
      usual: data.usual?.[place],
    }));
    this.top = { name: "all", parent: null, total: 0, children: [] };
    for (const node of this.nodes) {
      node.above = node.parent < 0 ? this.top : this.nodes[node.parent];
      node.above.children.push(node);
    }
    for (const node of [this.top, ...this.nodes]) node.children.sort((a, b) => b.total - a.total);
    this.top.total = data.all;
    if (data.usual) this.top.usual = this.top.children.reduce((sum, one) => sum + one.usual, 0);
    this.show(this.top);
  }

  onNode(event, then) {
    const drawn = event.target.closest("button");
    if (drawn) then(drawn.node);
  }

  zoom(node) {
    this.show(node);
    node.drawn.focus();
  }

  /** Moves the focus by arrow keys: to the parent, the first child, or a neighbour. */
  move(event, node) {
    const siblings = node.above ? node.above.children : [node];
    const place = siblings.indexOf(node);
    const to = {
      ArrowUp: node.above, ArrowDown: node.children[0],
      ArrowLeft: siblings[place - 1], ArrowRight: siblings[place + 1],
    }[event.key];
    if (!to?.drawn?.isConnected) return;
    event.preventDefault();
    to.drawn.focus();
  }

  /** Draws a node over the whole width, with its parents above it and its children below. */
  show(node) {
    this.shown = node;
    this.reset.hidden = node === this.top;
    const words = this.search.value.trim().toLowerCase();
    this.isMatch = (one) => words !== "" && one.name.toLowerCase().includes(words);
    this.graph.classList.toggle("searched", words !== "");
    const drawn = document.createDocumentFragment();
    const above = [];
    for (let one = node.above; one; one = one.above) above.unshift(one);
    above.forEach((one, depth) => drawn.append(this.draw(one, depth, 0, 1, "above")));
    const deepest = this.drawBelow(drawn, node, above.length);
    this.graph.replaceChildren(drawn);
    this.graph.style.height = `${(deepest + 1) * ROW + 2}px`;
    this.found.textContent = words ? this.matched(node) : "";
    this.describe(node);
  }

  drawBelow(drawn, node, depth) {
    let deepest = depth;
    const waiting = [[node, depth, 0]];
    while (waiting.length) {
      const [one, level, left] = waiting.pop();
      const width = one.total / (node.total || 1);
      if (width < NARROWEST) continue;
      drawn.append(this.draw(one, level, left, width, ""));
      deepest = Math.max(deepest, level);
      let next = left;
      for (const child of one.children) {
        waiting.push([child, level + 1, next]);
        next += child.total / (node.total || 1);
      }
    }
    return deepest;
  }

  draw(node, depth, left, width, className) {
    const drawn = element("button", className, node.name);
    drawn.type = "button";
    drawn.node = node;
    node.drawn = drawn;
    drawn.tabIndex = node === this.shown ? 0 : -1;
    drawn.classList.toggle("match", this.isMatch(node));
    drawn.title = `${node.name}: ${this.measured(node)}`;
    const [hue, light] = node.usual === undefined ? colourOf(node.name) : this.difference(node);
    drawn.style.cssText =
      `left:${100 * left}%;width:${100 * width}%;top:${depth * ROW}px;--hue:${hue};--light:${light}%`;
    return drawn;
  }

  /** Red is longer than usual, blue is shorter; the darker, the larger its part of the whole. */
  difference(node) {
    const part = (node.total - node.usual) / (this.top.total || 1);
    return [part >= 0 ? 8 : 215, Math.round(92 - 36 * Math.min(1, Math.abs(part)))];
  }

  measured(node) {
    const selfTime = node.total - node.children.reduce((sum, child) => sum + child.total, 0);
    const share = (100 * node.total / (this.top.total || 1)).toFixed(1);
    const usual = node.usual === undefined ? "" : `, ${inMs(node.usual / 1000)} usual`;
    return `${inMs(node.total / 1000)}${usual}, ${share}% of all; ${inMs(Math.max(0, selfTime) / 1000)} self`;
  }

  describe(node) {
    this.told.textContent = `${node.name}: ${this.measured(node)}`;
  }

  /** Returns the share of the shown node that matches; a match inside a match counts once. */
  matched(node) {
    let sum = 0;
    const waiting = [node];
    while (waiting.length) {
      const one = waiting.pop();
      if (this.isMatch(one)) sum += one.total;
      else waiting.push(...one.children);
    }
    return `${(100 * sum / (node.total || 1)).toFixed(1)}% matches`;
  }
}

/** Operators are warm, autograd is green, modules are violet, Python frames are blue. */
function colourOf(name) {
  let hash = 0;
  for (const letter of name) hash = (hash * 31 + letter.codePointAt(0)) % 997;
  const light = 68 + hash % 14;
  if (name.startsWith("autograd::") || name.includes("Backward")) return [140 + hash % 20, light];
  if (name.startsWith("nn.Module")) return [270 + hash % 20, light];
  if (name.includes("::")) return [20 + hash % 25, light];
  return [205 + hash % 20, light];
}
