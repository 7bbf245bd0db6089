// All ranks of a job on one screen: a cell each, in blocks by host. Colour is the pace, a sign the health.

import { counted, duration, element, HEALTHS, part, say, SIGNS, WORDS } from "./common.js";

const [STUCK, DEAD, FAILED, UNKNOWN] = [0, 1, 2, 3], STOPPED = HEALTHS.indexOf("stopped");
const LARGEST = 22, SMALLEST = 3, TALLEST = 620, MAX_LABELS = 48, LABEL_PX = 17;
/** Ratios to the median at which the colour changes, with their colours and words. */
const SCALE = [[0.83, "--fast", "faster"], [1.2, "--usual", "near the median"], [1.5, "--slow-1", "1.2 to 1.5 times"],
  [2, "--slow-2", "1.5 to 2 times"], [Infinity, "--slow-3", "over 2 times"]];

export class RankGrid {
  constructor(canvas, told) {
    this.canvas = canvas;
    this.told = told;
    this.selected = -1;
    this.grid = null;
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    canvas.addEventListener("pointermove", (event) => this.tell(this.at(event)));
    canvas.addEventListener("pointerleave", () => this.tell(this.selected));
    canvas.addEventListener("click", (event) => this.select(this.at(event)));
    canvas.addEventListener("keydown", (event) => this.onKey(event));
  }

  show(grid, hosts, medianMs) {
    Object.assign(this, { grid, hosts, medianMs });
    this.blocks = hosts.map(() => []);
    grid.host.forEach((host, place) => this.blocks[host].push(place));
    this.draw();
    this.tell(this.selected);
  }

  /** Chooses the largest cells with which all blocks fit. */
  layOut(width) {
    const most = Math.max(...this.blocks.map((block) => block.length), 1), count = this.blocks.length;
    const columns = most <= 8 ? Math.min(most, 8) : Math.ceil(Math.sqrt(most * (count === 1 ? width / 300 : 2)));
    const label = count <= MAX_LABELS ? LABEL_PX : 0, tallest = Math.min(TALLEST, Math.max(240, innerHeight - 220));
    for (let cell = LARGEST; ; cell--) {
      const gap = cell > 6 ? 2 : 1, space = cell > 8 ? 14 : cell > 4 ? 4 : 2, pitch = cell + gap;
      const own = Math.min(columns, Math.max(1, Math.floor(width / pitch))), rows = Math.ceil(most / own);
      const blockWidth = Math.max(own * pitch + space, label ? Math.min(110, width) : 0), blockHeight = rows * pitch + space + label;
      const inRow = Math.max(1, Math.floor((width + space) / blockWidth));
      const height = Math.ceil(count / inRow) * blockHeight;
      if (height <= tallest || cell === SMALLEST) return { cell, pitch, own, blockWidth, blockHeight, inRow, height, label };
    }
  }

  draw() {
    if (!this.grid) return;
    const canvas = this.canvas, width = canvas.parentElement.clientWidth, scale = devicePixelRatio || 1;
    const lay = (this.lay = this.layOut(width));
    canvas.width = width * scale;
    canvas.height = lay.height * scale;
    canvas.style.height = `${lay.height}px`;
    const ink = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    this.colours = SCALE.map(([, name]) => colour(name));
    const colours = { none: colour("--unknown"), dead: colour("--dead"), stuck: colour("--stuck"), ink: colour("--ink"), soft: colour("--soft"), paper: colour("--card") };
    ink.scale(scale, scale);
    ink.clearRect(0, 0, width, lay.height);
    ink.font = "12px system-ui, sans-serif";
    this.blocks.forEach((block, number) => {
      const [left, top] = this.corner(number);
      if (lay.label) {
        ink.fillStyle = colours.soft;
        ink.fillText(shortened(ink, this.hosts[number], lay.blockWidth - 10), left, top + 11);
      }
      block.forEach((place, index) => this.drawCell(ink, place, ...this.cellAt(left, top, index), colours));
    });
    canvas.setAttribute("aria-label", `${counted(this.grid.rank.length)} ranks on ${counted(this.hosts.length)} hosts; arrow keys move between them`);
  }

  drawCell(ink, place, x, y, colours) {
    const { cell } = this.lay, ms = this.grid.ms[place];
    const health = this.grid.health[place] === FAILED ? DEAD : this.grid.health[place];
    ink.fillStyle = health === DEAD ? colours.dead : health === STUCK ? colours.stuck
      : health === STOPPED || health === UNKNOWN || ms === null || !this.medianMs ? colours.none : this.colours[SCALE.findIndex(([most]) => ms / this.medianMs < most)];
    if (health === STOPPED && cell > 5) {
      ink.strokeStyle = colours.soft;
      ink.strokeRect(x + 0.5, y + 0.5, cell - 1, cell - 1);
    } else ink.fillRect(x, y, cell, cell);
    if (cell >= 8 && (health === DEAD || health === STUCK)) {
      ink.strokeStyle = colours.paper;
      ink.lineWidth = cell > 12 ? 2 : 1.3;
      ink.beginPath();
      const least = 0.28 * cell, most = 0.72 * cell;
      if (health === DEAD) {
        ink.moveTo(x + least, y + least); ink.lineTo(x + most, y + most);
        ink.moveTo(x + most, y + least); ink.lineTo(x + least, y + most);
      } else {
        ink.moveTo(x + cell / 2, y + least); ink.lineTo(x + most, y + most);
        ink.lineTo(x + least, y + most); ink.closePath();
      }
      ink.stroke();
      ink.lineWidth = 1;
    }
    if (cell < 8 && (health === DEAD || health === STUCK)) {
      ink.strokeStyle = health === DEAD ? colours.dead : colours.stuck;
      ink.strokeRect(x - 2.5, y - 2.5, cell + 5, cell + 5);
    }
    if (place === this.selected) {
      ink.strokeStyle = colours.ink;
      ink.lineWidth = 2;
      ink.strokeRect(x - 1, y - 1, cell + 2, cell + 2);
      ink.lineWidth = 1;
    }
  }

  corner(number) {
    const { inRow, blockWidth, blockHeight } = this.lay;
    return [(number % inRow) * blockWidth + 1, Math.floor(number / inRow) * blockHeight + 1];
  }

  cellAt(left, top, index) {
    const { own, pitch, label } = this.lay;
    return [left + (index % own) * pitch, top + label + Math.floor(index / own) * pitch];
  }

  /** The place of the rank below the pointer; -1 for none. */
  at(event) {
    if (!this.lay) return -1;
    const box = this.canvas.getBoundingClientRect(), { inRow, blockWidth, blockHeight, pitch, own, label } = this.lay;
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const block = Math.floor(x / blockWidth) + Math.floor(y / blockHeight) * inRow;
    const column = Math.floor((x % blockWidth) / pitch), row = Math.floor(((y % blockHeight) - label) / pitch);
    if (Math.floor(x / blockWidth) >= inRow || column >= own || row < 0) return -1;
    return this.blocks[block]?.[row * own + column] ?? -1;
  }

  select(place) {
    this.selected = place;
    this.draw();
    this.tell(place);
    if (place >= 0) this.canvas.dispatchEvent(new CustomEvent("rank", { detail: place }));
  }

  onKey(event) {
    const count = this.grid?.rank.length ?? 0, step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.lay?.own, ArrowUp: -this.lay?.own }[event.key];
    const order = this.blocks?.flat() ?? [], now = order.indexOf(this.selected);
    let next = null;
    if (step) next = Math.min(count - 1, Math.max(0, now < 0 ? 0 : now + step));
    else if (event.key === "Home") next = 0;
    else if (event.key === "End") next = count - 1;
    if (next === null || !count) return;
    event.preventDefault();
    this.select(order[next]);
  }

  tell(place) {
    const grid = this.grid;
    if (!grid || place < 0 || place >= grid.rank.length) {
      say(this.told, "Point at a cell, or move with the arrow keys.");
      return;
    }
    const health = HEALTHS[grid.health[place]], ms = grid.ms[place];
    const share = ms && this.medianMs ? `, ${(ms / this.medianMs).toFixed(2)} of the median` : "";
    say(this.told, `${rankName(grid, place)} on ${this.hosts[grid.host[place]]}: ${WORDS[health] ?? health}, step ${counted(grid.step[place])}, ${duration(ms)} a step${share}`);
  }
}

export const rankName = (grid, place) => `${grid.role[place] ? `${grid.role[place]} ` : ""}rank ${grid.rank[place]}`;

function shortened(ink, text, width) {
  if (ink.measureText(text).width <= width) return text;
  let kept = text;
  while (kept && ink.measureText(`…${kept}`).width > width) kept = kept.slice(1);
  return `…${kept}`;
}

/** Says what the colours and signs mean. */
export function drawLegend(target) {
  const swatch = (kind, text) => element("span", "key", element("span", `swatch ${kind}`), text);
  target.replaceChildren(
    ...SCALE.map(([, name, words]) => swatch(name.slice(2), words)),
    swatch("unknown", "unknown"), element("span", "key", element("span", "state stuck", SIGNS.stuck), "stuck"),
    element("span", "key", element("span", "state dead", SIGNS.dead), "dead"),
  );
}
