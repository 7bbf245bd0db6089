"use strict";
// Draws how a step changed over the baselines. Names come from traces, so they are text, never markup.

const data = JSON.parse(document.getElementById("data").textContent);
const part = (name) => document.getElementById(name);
const CHARTS = [["step", "Pace of steps"], ["part", "Parts of a step"], ["phase", "Phases of the host"],
  ["operator", "Operators with the most time"], ["kernel", "Kernels with the most time"]];
const LINES = ["--computing", "--communication", "--forward", "--backward", "--loading", "--optimizer", "--late"];
const inCell = (value) => value.toLocaleString("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 });

function drawChart(by, title) {
  const rows = data.series.filter((one) => one.by === by);
  if (!rows.length) return;
  const target = element("section"), chart = element("div", "chart");
  target.id = by;
  target.append(element("h2", "", title), chart);
  part("charts").append(target);
  const link = element("a", "", title);
  link.href = `#${by}`;
  part("index").append(link);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
  const newest = data.at.length - 1;
  const firsts = new Set(rows.flatMap((one) => one.firsts));
  const options = {
    width: chart.clientWidth, height: 240,
    scales: { y: { range: (_, least, most) => [Math.min(0, least), most * 1.05 || 1] } },
    axes: [{ ...axis, values: (_, times) => times.map(moment) }, { ...axis, label: "ms", size: 70 }],
    series: [{ label: "baseline", value: (_, at) => at === null ? "" : data.names[data.at.indexOf(at)] },
      ...rows.map((one, place) => ({
        label: one.name, stroke: colour(LINES[place % LINES.length]), width: 2, points: { size: 6 },
        value: (_, value) => value === null ? "" : inMs(value),
      }))],
    hooks: {
      draw: [(plot) => drawChanges(plot, firsts, colour("--warn"))],
      setLegend: [(plot) => { if (plot.legend.idx === null) plot.setLegend({ idx: newest }); }],
    },
  };
  const plot = new uPlot(options, [data.at, ...rows.map((one) => one.ms)], chart);
  plot.setLegend({ idx: newest });
  new ResizeObserver(() => plot.setSize({ width: chart.clientWidth, height: 240 })).observe(chart);
}

/** A time in the order of the terminal: day and month only if the baselines are of several days. */
function moment(seconds) {
  const at = new Date(1000 * seconds);
  const of = (options) => at.toLocaleString("en-GB", options);
  const clock = of({ hour: "2-digit", minute: "2-digit" });
  return data.at.at(-1) - data.at[0] < 86400 ? clock : `${of({ day: "2-digit", month: "short" })} ${clock}`;
}

/** Draws a dashed line at the first baseline of each change. */
function drawChanges(plot, firsts, colour) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = colour;
  ctx.setLineDash([6, 4]);
  for (const first of firsts) {
    const x = plot.valToPos(data.at[first], "x", true);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

function changed(one) {
  return one.changes.map(([at, before, after]) => `${at}: ${inMs(before)} to ${inMs(after)}`).join(", ");
}

part("title").textContent = data.title;
part("verdict").textContent = data.verdict;
part("made").textContent = `Made by ${data.made_by}. This page does not use the network.`;
part("warnings").hidden = data.warnings.length === 0;
part("warnings").append(...data.warnings.map((one) => element("li", "", one)));
for (const [by, title] of CHARTS) drawChart(by, title);
new SortedTable(document.querySelector("#all .table"),
  [["What", (value) => value], ["By", (value) => value], ["Median ms", inCell], ["Newest ms", inCell], ["Changed", (value) => value]],
  data.series.map((one) => [one.name, one.by, one.median, one.ms.at(-1), changed(one)]), null, "quantities");
