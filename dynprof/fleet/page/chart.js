// The pace of a rank over time, with the moments at which it changed.

import { counted, duration, element, moment, part, say } from "./common.js";

/** A longer point than CUT times most others is cut off, at SHOWN times. */
const CUT = 5, SHOWN = 3;
let plot = null;

export function drawHistory(target, history) {
  plot?.destroy();
  plot = null;
  target.replaceChildren();
  const known = history.ms.filter((one) => one !== null);
  const top = topOf(known);
  const cut = Math.max(...known) > top ? `Longer steps are cut off; the longest took ${duration(Math.max(...known))}.` : "";
  say(part("chart-told"), known.length ? cut : "There is no history of this rank yet; a rank writes it every half minute.");
  drawChanges(history);
  if (!known.length) return;
  const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
  const size = () => ({ width: Math.max(240, target.clientWidth), height: 220 });
  plot = new uPlot({
    ...size(),
    cursor: { y: false },
    scales: { y: { range: [0, top * 1.1 || 1] } },
    axes: [{ ...axis, values: (drawn, splits) => splits.map((at) => clock(at, drawn.scales.x.max - drawn.scales.x.min, splits[1] - splits[0])) }, { ...axis, label: "ms a step", size: 62, labelSize: 18, labelFont: "12px system-ui, sans-serif" }],
    series: [
      { label: "Time", value: (_, at) => (at === null ? "–" : moment(at)) },
      { label: "Step", stroke: colour("--accent"), width: 1.5, points: { show: false }, value: (_, ms) => duration(ms) },
    ],
    hooks: { draw: [(drawn) => markChanges(drawn, history, colour)] },
  }, [history.at_s, history.ms], target);
  new ResizeObserver(() => plot?.setSize(size())).observe(target);
}

/** The end of the axis: a few long steps, such as evaluations, would hide how all others change. */
function topOf(known) {
  const sorted = [...known].sort((a, b) => a - b), most = sorted.at(-1) ?? 0;
  const usual = sorted[Math.floor(0.9 * (sorted.length - 1))] ?? 0;
  return most > CUT * usual ? SHOWN * usual : most;
}

/** Draws a dashed line at each change of the pace, and a dotted one at each restart. */
function markChanges(drawn, history, colour) {
  const { ctx, bbox } = drawn, [from, to] = [drawn.scales.x.min, drawn.scales.x.max];
  const marks = [...history.changes.map((one) => [one.at_s, colour("--slow-3"), [6, 4]]), ...history.restarts.map((one) => [one.at_s, colour("--soft"), [2, 3]])];
  for (const [at, stroke, dash] of marks.filter(([at]) => at >= from && at <= to)) {
    const x = drawn.valToPos(at, "x", true);
    ctx.save();
    ctx.strokeStyle = stroke;
    ctx.lineWidth = 1.5 * (devicePixelRatio || 1);
    ctx.setLineDash(dash.map((one) => one * (devicePixelRatio || 1)));
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.restore();
  }
}

/** The time of a tick; a date where days are shown, and seconds where minutes would repeat. */
function clock(atS, spanS, tickS) {
  const [day, time] = new Date(atS * 1e3).toLocaleString("sv").split(" ");
  return spanS > 2 * 86400 ? day.slice(5) : spanS > 86400 / 2 && time.startsWith("00:00") ? day.slice(5) : time.slice(0, tickS < 60 ? 8 : 5);
}

function drawChanges(history) {
  const changes = history.changes.slice(-8).reverse().map((one) =>
    element("li", "", `${moment(one.at_s)}, step ${counted(one.step)}: ${duration(one.ms[0])} a step before, ${duration(one.ms[1])} since`));
  const restarts = history.restarts.slice(-4).reverse().map((one) => element("li", "", `${moment(one.at_s)}: the process began again at step ${counted(one.step)}`));
  part("changes").replaceChildren(...changes, ...restarts);
}
