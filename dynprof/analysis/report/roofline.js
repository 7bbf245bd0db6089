"use strict";
// Operators under the roofs of the device: their rates, and what is possible.

function drawRoofline() {
  const { rows, peak, on_host: onHost } = data.roofline;
  section("roofline").hidden = rows.length === 0;
  if (!rows.length) return;
  part("roofline", ".hint").textContent = saidOfRoofline(data.roofline);
  const dots = rows.filter((row) => row[4] && row[6]);
  if (dots.length) plotRoofs(dots, peak);
  const columns = [["Operator and shapes", text], ["Type", text], ["Count", whole], ["ms", time],
    ["TFLOP/s", rate], ["GB/s", rate], ["FLOP a byte", rate]];
  if (peak) columns.push(["% of roofline", rate], ["Held by", text]);
  if (!onHost) columns.push(["Tensor cores %", rate]);
  const places = [0, 1, 2, 3, 4, 5, 6, ...(peak ? [7, 8] : []), ...(onHost ? [] : [9])];
  new SortedTable(part("roofline", ".table"), columns,
    rows.map((row) => places.map((place) => row[place])), 3, "operators and shapes");
}

const rate = (value) => value === null ? "" : value.toLocaleString("en", { maximumSignificantDigits: 3 });

function saidOfRoofline({ rows, count, peak, device, covered, on_host: onHost }) {
  const said = [];
  if (rows.length < count) said.push(`The ${rows.length} with the most time of ${count}.`);
  said.push("The FLOPs and bytes that operators need at least, by their shapes, in the time that " +
    (onHost ? "the host was in them." : "the device worked for them."));
  if (covered !== null) said.push(`They take ${Math.round(100 * covered)}% of the device's time.`);
  if (peak) said.push(`The device, ${device}, moves at most ${whole(peak.gb_s)} GB/s (${peak.source}).`);
  else if (device) said.push(`The peaks of ${device} are unknown: set DYNPROF_PEAKS to a file that has them.`);
  return said.join(" ");
}

/** Draws both axes in powers of ten; a line for each roof, a dot for each operator. */
function plotRoofs(dots, peak) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const line = { stroke: colour("--line"), width: 0.5 };
  const powers = (_, values) => values.map((value) => value === null ? null : rate(value));
  const axis = { stroke: colour("--soft"), grid: line, ticks: line, values: powers };
  const roofs = peak ? Object.entries(peak.tflops).sort((a, b) => b[1] - a[1]) : [];
  const ridges = roofs.map(([, most]) => 1000 * most / peak.gb_s);
  const range = (values) => [Math.min(...values) / 2, Math.max(...values) * 2];
  const [left, right] = range([...dots.map((row) => row[6]), ...ridges]);
  const xs = [...new Set([left, ...dots.map((row) => row[6]), ...ridges, right])].sort((a, b) => a - b);
  const lines = roofs.map(([, most]) => xs.map((x) => Math.min(most, x * peak.gb_s / 1000)));
  const at = new Map(xs.map((x, place) => [x, place]));
  const columns = [], names = [];
  for (const row of dots) {
    let column = columns.findIndex((one) => one[at.get(row[6])] === null);
    if (column < 0) {
      column = columns.push(xs.map(() => null)) - 1;
      names.push(new Map());
    }
    columns[column][at.get(row[6])] = row[4];
    names[column].set(at.get(row[6]), row[0]);
  }
  const shades = ["--computing", "--communication", "--loading", "--forward", "--optimizer", "--checkpoint", "--copying"];
  const told = part("roofline", ".told");
  const options = {
    height: 320, scales: { x: { time: false, distr: 3 }, y: { distr: 3 } }, legend: { show: roofs.length > 0 },
    axes: [{ ...axis, label: "FLOP a byte" }, { ...axis, label: "TFLOP/s", size: 85 }],
    series: [{ label: "FLOP a byte" },
      ...roofs.map(([name], place) => ({ label: name, stroke: colour(shades[place % shades.length]), points: { show: false } })),
      ...columns.map(() => ({ stroke: colour("--accent"), paths: () => null, points: { show: true, size: 7 } }))],
    cursor: { drag: { x: false, y: false } },
    hooks: { setCursor: [(plot) => {
      const near = plot.cursor.idx;
      const found = near === null || near === undefined ? [] : names.map((one) => one.get(near)).filter(Boolean);
      told.textContent = found.slice(0, 3).join("; ");
    }] },
  };
  const chart = part("roofline", ".chart");
  const plot = new uPlot({ ...options, width: chart.clientWidth }, [xs, ...lines, ...columns], chart);
  for (const entry of [...plot.root.querySelectorAll(".u-legend .u-series")].slice(1 + roofs.length)) entry.remove();
  new ResizeObserver(() => plot.setSize({ width: chart.clientWidth, height: 320 })).observe(chart);
}
