"use strict";
// Bars of times on one scale.

const COLOURS = {
  "in operators": "--computing", "in recorded calls": "--computing",
  "Python or waiting": "--idle", "outside of recorded calls": "--idle",
  "computing": "--computing", "communication": "--communication", "copying": "--copying",
  "idle": "--idle", "earlier work": "--earlier", "recording": "--recording",
  "data loading": "--loading", "forward": "--forward", "backward": "--backward",
  "recomputation": "--recomputation", "optimizer": "--optimizer", "checkpoint": "--checkpoint", "rest": "--rest",
  "host": "--host", "launches": "--calls", "kernels": "--computing", "copies": "--copying",
  "between kernels": "--gap", "return to the host": "--return", "unknown wait": "--idle",
  "host blocked": "--blocked", "host late": "--late", "queued": "--queue",
  "nothing to do": "--rest", "unknown": "--idle",
  "step": "--marked", "operators": "--host", "runtime calls": "--calls",
};

/** Parts of the critical path that are the same work as on the device: one entry of a legend. */
const SAME = { "kernels": "computing", "copies": "copying", "operators": "host", "runtime calls": "launches" };

const FEW_BARS = 12;  // unfolded at once

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function inMs(value) {
  if (value >= 100) return `${Math.round(value).toLocaleString("en")} ms`;
  return `${Number(value.toPrecision(3))} ms`;
}

/** A number with its noun: 1 step, 1,200 steps. */
function counted(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

/** Draws the times in `parts` (ms) as one bar; `longest` (ms) fills the width. */
function drawBar(parts, longest, className) {
  const bar = element("div", className);
  const named = Object.entries(parts).filter(([, time]) => time > 0);
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", named.map(([name, time]) => `${name} ${inMs(time)}`).join(", "));
  for (const [name, time] of named) {
    const part = element("i");
    part.style.setProperty("--of", `var(${COLOURS[name]})`);
    part.style.width = `${100 * time / longest}%`;
    part.title = `${name} ${inMs(time)}`;
    bar.append(part);
  }
  return bar;
}

/** Says which steps have a row, if not all have. */
function whichSteps(rows, count) {
  if (rows.length === count) return "";
  return ` The graph shows the slowest ${data.noun}s and their neighbours, ${rows.length} of ${count}; ${count - rows.length} are left out.`;
}

/**
 * Draws rows of {name, value, marked, skipped, bars: [parts, ...]}, the second and later bars
 * thinner; says how many steps are skipped before a row, and after the last one of `count`.
 */
function drawBars(target, rows, count = rows.length) {
  const longest = Math.max(...rows.map((row) => row.value), 1e-9);
  const gap = (skipped) => {
    if (skipped) target.append(element("span", "skipped", `${counted(skipped, data.noun)} left out`));
  };
  let left = count - rows.length;
  for (const row of rows) {
    gap(row.skipped);
    left -= row.skipped || 0;
    const pair = element("div", "pair");
    row.bars.forEach((parts, place) =>
      pair.append(drawBar(parts, longest, place ? "bar thin" : "bar")));
    const name = element("span", row.marked ? "name marked" : "name", row.name);
    target.append(name, pair, element("span", "value", inMs(row.value)));
  }
  gap(left);
  if (rows.length > FEW_BARS) fold(target, rows.length);
}

/** Makes bars scroll, from the first marked one on, until a button unfolds them. */
function fold(target, count) {
  const more = element("button", "more", `Show all ${count}`);
  more.type = "button";
  target.classList.add("folded");
  target.after(more);
  more.addEventListener("click", () => { target.classList.remove("folded"); more.remove(); });
  const marked = target.querySelector(".marked");
  if (marked) target.scrollTop = marked.offsetTop - target.offsetTop - 60;
}

/** Draws the legend of the parts that occur in any bar. */
function drawLegend(target, rows) {
  const named = new Set();
  for (const row of rows)
    for (const parts of row.bars)
      for (const [name, time] of Object.entries(parts)) if (time > 0) named.add(name);
  for (const name of Object.keys(COLOURS)) {
    if (!named.has(name) || named.has(SAME[name])) continue;
    const same = Object.keys(SAME).find((one) => SAME[one] === name && named.has(one));
    const entry = element("span", "", same ? `${name}, ${same}` : name);
    entry.style.setProperty("--of", `var(${COLOURS[name]})`);
    target.append(entry);
  }
}
