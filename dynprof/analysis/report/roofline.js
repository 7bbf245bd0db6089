"use strict";
// Operators under the roofs of the device: their rates, and what is possible.

function drawRoofline() {
  const { rows, peak, on_host: onHost } = data.roofline;
  section("roofline").hidden = rows.length === 0;
  if (!rows.length) return;
  part("roofline", ".hint").textContent = saidOfRoofline(data.roofline);
  const fastest = Math.max(...rows.map((row) => row[4] ?? 0));
  const dots = rows.filter((row) => row[4] > fastest / SLOWEST_DRAWN && row[6]);
  if (dots.length) plotRoofs(dots, peak);
  const columns = [  // title, format, place in a row; a narrow screen shows the first ones
    ["Operator and shapes", text, 0], ["ms", time, 3],
    ...(peak ? [["% of roofline", rate, 7], ["Bound by", text, 8]] : []),
    ...(onHost ? [] : [["Tensor cores %", rate, 9]]),
    ["TFLOP/s", rate, 4], ["GB/s", rate, 5], ["FLOP per byte", rate, 6], ["Type", text, 1], ["Count", whole, 2]];
  new SortedTable(part("roofline", ".table"), columns,
    rows.map((row) => columns.map(([, , place]) => row[place])), 1, "operators and shapes");
}

const SLOWEST_DRAWN = 1e5;  // times slower than the fastest operator: slower ones have only a row

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

/** Draws both axes in powers of ten; a line for each roof, a dot for each operator, both with names. */
function plotRoofs(dots, peak) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const line = { stroke: colour("--line"), width: 0.5 };
  const powers = (_, values) => values.map((value) => Number.isInteger(Math.round(Math.log10(value) * 1e6) / 1e6) ? rate(value) : "");
  const axis = { stroke: colour("--soft"), grid: line, ticks: line, values: powers };
  const roofs = peak ? peak.roofs : [];
  const ridges = roofs.map(([, most]) => 1000 * most / peak.gb_s);
  const around = (values) => [Math.min(...values) / 2, Math.max(...values) * 2];
  const [left, right] = around([...dots.map((row) => row[6]), ...ridges]);
  const xs = [...new Set([left, ...dots.map((row) => row[6]), ...ridges, right])].sort((a, b) => a - b);
  const bends = new Set([left, ...ridges, right]);  // between them a roof is straight
  const lines = roofs.map(([, most]) => xs.map((x) => bends.has(x) ? Math.min(most, x * peak.gb_s / 1000) : null));
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
  const shade = (place) => colour(shades[place % shades.length]);
  const told = part("roofline", ".told");
  const options = {
    height: 340, legend: { show: false }, cursor: { drag: { x: false, y: false } },
    scales: { x: { time: false, distr: 3 },
      y: { distr: 3, range: around([...dots.map((row) => row[4]), ...roofs.map(([, most]) => most)]) } },
    axes: [{ ...axis, label: "FLOP per byte" }, { ...axis, label: "TFLOP/s", size: 85 }],
    series: [{ label: "FLOP per byte" },
      ...roofs.map(([name], place) => ({ label: name, stroke: shade(place), width: 1.5, spanGaps: true, points: { show: false } })),
      ...columns.map(() => ({ stroke: colour("--accent"), paths: () => null, points: { show: true, size: 7 } }))],
    hooks: {
      draw: [(plot) => nameOnChart(plot, roofs, dots, right, shade, colour)],
      setCursor: [(plot) => {
        const near = plot.cursor.idx;
        const found = near === null || near === undefined ? [] : names.map((one) => one.get(near)).filter(Boolean);
        told.textContent = found.slice(0, 3).join("; ");
      }],
    },
  };
  const chart = part("roofline", ".chart");
  const plot = new uPlot({ ...options, width: chart.clientWidth }, [xs, ...lines, ...columns], chart);
  new ResizeObserver(() => plot.setSize({ width: chart.clientWidth, height: 340 })).observe(chart);
}

const MAX_NAMED = 6;  // operators with a name on the chart, those with the most time

/** Writes the names of roofs at their right ends, and of operators next to their dots where there is room. */
function nameOnChart(plot, roofs, dots, right, shade, colour) {
  const pen = plot.ctx, ratio = devicePixelRatio || 1, height = 13 * ratio, radius = 5 * ratio;
  const placed = dots.map((row) => ({ row, x: plot.valToPos(row[6], "x", true), y: plot.valToPos(row[4], "y", true) }));
  const taken = placed.map(({ x, y }) => ({ left: x - radius, right: x + radius, top: y - radius, bottom: y + radius }));
  pen.save();
  Object.assign(pen, { font: `${11 * ratio}px system-ui, sans-serif`, textAlign: "left", textBaseline: "alphabetic",
    strokeStyle: colour("--paper"), lineWidth: 3 * ratio, lineJoin: "round" });
  const write = (text, y, ...places) => {
    const width = pen.measureText(text).width;
    for (const x of places.map((place) => place(width))) {
      const box = { left: x, right: x + width, top: y - height, bottom: y };
      const isFree = taken.every((one) => box.right < one.left || box.left > one.right || box.bottom < one.top || box.top > one.bottom);
      if (!isFree || box.left < plot.bbox.left || box.right > plot.bbox.left + plot.bbox.width) continue;
      taken.push(box);
      pen.strokeText(text, x, y);
      pen.fillText(text, x, y);
      return;
    }
  };
  roofs.forEach(([name, most], place) => {
    pen.fillStyle = shade(place);
    const end = plot.valToPos(right, "x", true);
    write(`${name}: ${rate(most)}`, plot.valToPos(most, "y", true) - 4 * ratio, (width) => end - width - 4 * ratio);
  });
  pen.fillStyle = colour("--ink");
  for (const { row, x, y } of placed.slice(0, MAX_NAMED)) {
    write(row[0].split(" ")[0].replace("aten::", ""), y + 4 * ratio, () => x + 7 * ratio, (width) => x - width - 7 * ratio);
  }
  pen.restore();
}
