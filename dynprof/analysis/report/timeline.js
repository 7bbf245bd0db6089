"use strict";
// The timeline: a row for steps, phases, each thread and each stream, on a canvas that zooms.

const TRACK = 22, RULER = 24, TITLE = 13, NAMED = 34;  // heights of a row; px from which a slice has its name
const SHORTEST_NS = 100;

class Timeline {
  /** `data` has the tracks of timeline.py: four numbers for each slice, times in ns. */
  constructor(section, data) {
    Object.assign(this, { data, from: 0, to: data.length, marked: null });
    this.canvas = section.querySelector("canvas");
    this.told = section.querySelector(".told");
    this.command = section.querySelector("code");
    this.tracks = data.tracks.map(([title, numbers]) => ({ title, ...this.unpack(numbers) }));
    const actions = { in: () => this.zoom(.5), out: () => this.zoom(2), left: () => this.move(-.5),
      right: () => this.move(.5), all: () => this.show(0, data.length) };
    for (const button of section.querySelectorAll("button"))
      button.addEventListener("click", actions[button.name]);
    const keys = { "+": "in", "=": "in", "w": "in", "-": "out", "s": "out", "ArrowLeft": "left", "a": "left",
      "ArrowRight": "right", "d": "right", "0": "all", "Home": "all" };
    this.canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
      event.preventDefault();
      actions[keys[event.key]]();
    });
    this.canvas.addEventListener("pointerdown", (event) => { this.pressed = event.offsetX; });
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerup", (event) => this.release(event));
    this.canvas.addEventListener("pointerleave", () => { this.pressed = undefined; this.draw(); });
    this.canvas.addEventListener("dblclick", actions.all);
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;  // else the page scrolls
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : .8, this.timeAt(event.offsetX));
    }, { passive: false });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
  }

  unpack(numbers) {
    const count = numbers.length / 4;
    const [start, end, reached] = [0, 0, 0].map(() => new Float64Array(count));
    let at = 0;
    for (let place = 0; place < count; place++) {
      start[place] = at + numbers[4 * place];
      at = end[place] = start[place] + numbers[4 * place + 1];
      reached[place] = Math.max(reached[place - 1] ?? 0, at);  // slices of a stream may overlap
    }
    return { start, end, reached, name: (place) => numbers[4 * place + 2], kind: (place) => numbers[4 * place + 3] };
  }

  /** Shows the time from `from` to `to`, in ns since the first slice. */
  show(from, to) {
    const width = Math.min(Math.max(to - from, SHORTEST_NS), this.data.length);
    this.from = Math.min(Math.max(from, 0), this.data.length - width);
    this.to = this.from + width;
    this.draw();
  }

  /** Shows and marks a moment with some time around it. */
  jump(from, length) {
    this.marked = [from, from + length];
    this.show(from - Math.max(length, 1000), from + 2 * Math.max(length, 1000));
    this.canvas.focus({ preventScroll: true });
    this.told.textContent = this.data.tracks.map((_, row) => this.describe(
      this.placeOf(from + length / 2), RULER + row * (TITLE + TRACK) + TITLE + 1)).filter((one) => one.includes(":")).join("; ");
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    this.show(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  move(share) {
    const by = (this.to - this.from) * share;
    this.show(this.from + by, this.to + by);
  }

  timeAt(x) { return this.from + x / this.width * (this.to - this.from); }

  placeOf(time) { return (time - this.from) / (this.to - this.from) * this.width; }

  draw() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    this.width = this.canvas.parentElement.clientWidth;
    const height = RULER + this.tracks.length * (TITLE + TRACK) + 4, ratio = devicePixelRatio || 1;
    Object.assign(this.canvas, { width: this.width * ratio, height: height * ratio });
    Object.assign(this.canvas.style, { width: `${this.width}px`, height: `${height}px` });
    const pen = this.pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    this.drawRuler(colour, height);
    const colours = this.data.kinds.map((kind) => colour(COLOURS[kind]));
    this.ink = colour("--on-slice");
    this.tracks.forEach((track, row) => {
      const top = RULER + row * (TITLE + TRACK);
      pen.fillStyle = colour("--soft");
      pen.fillText(track.title, 2, top + TITLE / 2);
      this.drawTrack(track, top + TITLE, colours);
    });
    if (this.marked) {
      const [left, right] = this.marked.map((time) => this.placeOf(time));
      pen.strokeStyle = colour("--warn");
      pen.lineWidth = 2;
      pen.strokeRect(left, RULER, Math.max(right - left, 2), height - RULER - 2);
    }
    const begin = (this.data.begin + this.from) / 1e6, length = (this.to - this.from) / 1e6;
    this.command.textContent =
      `dynprof view ${quoted(pathOf(this.data.file))} --at ${begin.toFixed(3)} --for ${Math.max(length, .001).toFixed(3)}`;
  }

  drawRuler(colour, height) {
    const { pen } = this, span = this.to - this.from, most = Math.max(2, this.width / 110);
    const power = 10 ** Math.floor(Math.log10(span / most));
    const every = [1, 2, 5, 10].map((one) => one * power).find((one) => span / one <= most);
    const digits = Math.max(0, 6 - Math.floor(Math.log10(every) + 1e-9));
    pen.fillStyle = colour("--soft");
    pen.strokeStyle = colour("--line");
    pen.lineWidth = 1;
    const offset = this.data.begin;
    for (let tick = Math.ceil((this.from + offset) / every); tick * every <= this.to + offset; tick++) {
      const x = Math.round(this.placeOf(tick * every - offset)) + .5;
      pen.beginPath();
      pen.moveTo(x, 0);
      pen.lineTo(x, height);
      pen.stroke();
      pen.fillText(`${(tick * every / 1e6).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ms`, x + 3, RULER / 2);
    }
  }

  drawTrack(track, top, colours) {
    const { pen } = this;
    let drawnTo = -1, drawnKind = -1;
    for (let place = firstAfter(track.reached, this.from); place < track.start.length && track.start[place] < this.to; place++) {
      const left = Math.max(this.placeOf(track.start[place]), 0), right = Math.min(this.placeOf(track.end[place]), this.width);
      const kind = track.kind(place);
      if (right < drawnTo && kind === drawnKind) continue;  // the same pixel again
      pen.fillStyle = colours[kind];
      const width = Math.max(right - left - (right - left > 3 ? .6 : 0), .8);
      pen.fillRect(left, top, width, TRACK - 4);
      drawnTo = Math.ceil(left + width), drawnKind = kind;
      if (width > NAMED) this.drawName(this.nameOf(track, place), left + 3, top + (TRACK - 4) / 2, width - 5);
    }
  }

  drawName(name, x, y, width) {
    const { pen } = this, fits = Math.floor(width / 6.2);
    pen.fillStyle = this.ink;
    pen.fillText(name.length > fits ? `${name.slice(0, Math.max(fits - 1, 1))}…` : name, x, y);
  }

  nameOf(track, place) {
    const name = track.name(place);
    return name < 0 ? `${-name} short ones, ${this.data.kinds[track.kind(place)]}` : this.data.names[name];
  }

  hover(event) {
    if (this.pressed !== undefined && event.buttons) {
      this.draw();
      this.pen.fillStyle = "rgb(128 128 128 / .3)";
      this.pen.fillRect(this.pressed, RULER, event.offsetX - this.pressed, this.canvas.height);
    }
    this.told.textContent = this.describe(event.offsetX, event.offsetY);
  }

  describe(x, y) {
    const track = this.tracks[Math.floor((y - RULER) / (TITLE + TRACK))], at = this.timeAt(x);
    if (!track) return "";
    const slack = (this.to - this.from) / this.width, place = firstAfter(track.reached, at - slack);
    if (place >= track.start.length || track.start[place] > at + slack) return track.title;
    const begin = (this.data.begin + track.start[place]) / 1e6;
    return `${track.title}: ${this.nameOf(track, place)}, ${inMs((track.end[place] - track.start[place]) / 1e6)}, from ${time(begin)} ms on`;
  }

  release(event) {
    const [one, other] = [this.pressed, event.offsetX].sort((a, b) => a - b);
    this.pressed = undefined;
    if (other - one > 4) this.show(this.timeAt(one), this.timeAt(other));
  }
}

/** The path of a file that is named from the page's folder. */
function pathOf(file) {
  if (location.protocol !== "file:") return file.split("/").pop();
  return decodeURIComponent(new URL(file.split("/").map(encodeURIComponent).join("/"), location.href).pathname);
}

/** Quotes a word for a shell, if need be. */
const quoted = (word) => /^[\w./@%+=:,-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;

/** The first place whose value is above `limit`; values ascend. */
function firstAfter(values, limit) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > limit) high = middle; else low = middle + 1;
  }
  return low;
}

function drawTimeline() {
  const { timeline } = data;
  if (!timeline) return null;
  section("timeline").hidden = false;
  const merged = timeline.resolution ? ` Slices shorter than ${inMs(timeline.resolution / 1e6)} are merged with their neighbours.` : "";
  const [threads, streams] = timeline.left_out;
  const left = [threads && counted(threads, "thread"), streams && counted(streams, "stream")].filter(Boolean);
  part("timeline", ".hint").textContent =
    (matchMedia("(pointer: coarse)").matches ? "The buttons zoom and move; a tap names a slice."
      : "Drag to zoom in, double-click to zoom out. Keys: + and -, arrows, 0; or the wheel with Ctrl.") + merged +
    (left.length ? ` Left out, with less to do: ${left.join(" and ")}.` : "");
  const kinds = new Set(timeline.tracks.flatMap(([, numbers]) => numbers.filter((_, place) => place % 4 === 3)));
  drawLegend(part("timeline", ".legend"), [{ bars: [Object.fromEntries([...kinds].map((kind) => [timeline.kinds[kind], 1]))] }]);
  return new Timeline(section("timeline"), timeline);
}
