"use strict";
// Draws the data on the page. Names come from traces, so they are text, never markup.

const data = JSON.parse(document.getElementById("data").textContent);
const section = (name) => document.getElementById(name);
const part = (name, selector) => section(name).querySelector(selector);
const text = (value) => value;
const whole = (value) =>
  (Number.isInteger(value) ? value : Number(value.toPrecision(4))).toLocaleString("en");
const time = (value) => value === null ? "" :
  value.toLocaleString("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 });

const share = (value) => `${(100 * value).toFixed(1)}%`;

/** A text whose commands and settings are code, such as `dynprof arm DIR --with-stack` or pin_memory=True. */
function withCode(text) {
  const code = /(dynprof arm \S+(?: --[\w-]+(?: python)?)*|py-spy record --idle --pid PID|[A-Z_]{6,}=\w[\w:,]*|\.?\b[a-z_.]+\([^()\s]*(?: [^()\s]*)?\)|\b[a-z_]+=\w+|\btorch(?:\.\w+)+)/;
  return text.split(code).map((piece, place) => place % 2 ? element("code", "", piece) : piece);
}

function drawHead() {
  section("title").textContent = data.title;
  section("verdict").textContent = data.verdict;
  section("made").textContent = `Made by ${data.made_by}. This page does not use the network.`;
  section("warnings").hidden = data.warnings.length === 0;
  if (data.damaged) part("overview", "#verdict").before(section("warnings"));
  section("warnings").append(...data.warnings.map((one) => element("li", "", one)));
  for (const [name, value] of data.about)
    part("about", "dl").append(element("dt", "", name), element("dd", "", value));
}

function drawFindings(timeline) {
  section("findings").hidden = data.findings.length === 0;
  for (const [place, finding] of data.findings.entries()) {
    const card = element("li");
    const cost = element("div", "share", `${Math.round(100 * finding.share)}%`);
    cost.append(element("small", "", ` of ${finding.of}`));
    const advice = element("p", "advice");
    advice.append(element("b", "", "What to try: "), ...withCode(finding.advice));
    card.append(cost, element("h3", "", `${place + 1}. ${finding.title}`), element("p", "", finding.detail),
      ...(finding.saves ? [element("p", "", finding.saves)] : []), advice);
    if (timeline) {
      const show = element("button", "show", "Show on the timeline");
      show.type = "button";
      show.addEventListener("click", () => {
        timeline.jump(finding.at[0] - data.timeline.begin, finding.at[1]);
        section("timeline").scrollIntoView();
      });
      card.append(show);
    }
    part("findings", "ol").append(card);
  }
}

function drawSteps() {
  const { rows, count, on_host: onHost } = data.steps;
  section("steps").hidden = rows.length === 0;
  if (data.iterations.count) part("steps", "h2").textContent = "Where the time of iterations goes";
  part("steps", ".hint").textContent =
    `${onHost ? "Above: operators of the host" : "Above: the device"}; below: the phases of the host.${whichSteps(rows, count)}`;
  const drawn = rows.map((row) => ({
    name: row.number === null ? "all" : `${data.noun} ${row.number}`,
    value: row.length, bars: [row.parts, row.phases], marked: row.outlier, skipped: row.skipped,
  }));
  drawBars(part("steps", ".bars"), drawn, count);
  drawLegend(part("steps", ".legend"), drawn);
}

function drawRanks() {
  if (!data.ranks) return;
  const { rows, count, verdicts, slowest, chosen, median, differences } = data.ranks;
  section("ranks").hidden = false;
  const shown = rows.length < count ? `The ${rows.length} of ${count} with the most work of their own, and the median of the others.` : `${counted(count, "rank")}.`;
  part("ranks", ".hint").textContent = `The mean step of each. ${shown} The rest of the page is about ${chosen}.`;
  part("ranks", ".verdicts").append(...verdicts.map((one) => element("li", "", one)));
  const drawn = rows.map((row) => ({
    name: `rank ${row.rank}`, value: row.length, bars: [row.parts], marked: row.rank === slowest,
  }));
  drawBars(part("ranks", ".bars"), drawn);
  drawLegend(part("ranks", ".legend"), drawn);
  const columns = [["Name", text], ["Where", text], [`Count, rank ${slowest}`, whole],
    [`rank ${median}`, whole], [`Self ms, rank ${slowest}`, time], [`rank ${median}`, time],
    ["Difference", time]];
  const target = part("ranks", ".differences");
  target.append(element("h3", "", `A step of rank ${slowest} compared with one of rank ${median}${count > 2 ? ", the median of the others" : ""}`));
  new SortedTable(target, columns, differences.map((row) => [...row, row[4] - row[5]]), 6, "the comparison");
}

function drawFlame() {
  section("flame").hidden = data.flame.name.length === 0;
  const graph = new FlameGraph(section("flame"), data.flame);
  const choice = part("flame", "select");
  choice.hidden = !data.flame_on_device;
  const say = () => {
    const { hidden } = data[choice.value];
    const thin = hidden ? ` Too thin to show: ${counted(hidden, "path")}.` : "";
    const apart = choice.value === "flame" && data.flame_without ? ` ${data.flame_without}` : "";
    const what = choice.value === "flame" ? `within the ${data.noun}s` : "of the whole capture, by the device's time for the work they launched";
    part("flame", ".hint").textContent = `Python frames and operators ${what}, of all threads that ran operators. Click one to widen it.${thin}${apart}`;
  };
  choice.addEventListener("change", () => { graph.load(data[choice.value]); say(); });
  say();
}

function drawOperators() {
  const { rows, count, devices } = data.operators;
  section("operators").hidden = rows.length === 0;
  if (!rows.length) return;
  part("operators", ".hint").textContent =
    (rows.length < count ? `The ${rows.length} with the most time of ${count}. ` : "") +
    `Times in ms of ${data.operators.of}; self time excludes what is called inside, and the share is that of self time.`;
  const columns = [["Name", text], ["Count", whole], ["Self ms", time], ["Self share", share], ["Total ms", time]];
  if (devices) columns.push(["On device, ms", time], ["On device, its backward, ms", time]);
  new SortedTable(part("operators", ".table"), columns, rows, 2, "operators");
}

const OF_KERNELS = [["Name", text], ["What", text], ["Count", whole], ["Total", time], ["Mean", time], ["Longest", time]];

function drawKernels() {
  const { rows, count } = data.kernels;
  section("kernels").hidden = rows.length === 0;
  if (!rows.length) return;
  part("kernels", ".hint").textContent =
    (rows.length < count ? `The ${rows.length} with the most time of ${count}. ` : "") +
    "Work of the device. Times in ms, over the whole capture. Kernels that communicate have a table of their own.";
  new SortedTable(part("kernels", ".table"), OF_KERNELS, rows, 3, "kernels");
}

const megabytes = (value) => value.toLocaleString("en", { maximumSignificantDigits: value >= 1000 ? 5 : 4 });

function drawMemory() {
  section("memory").hidden = data.memory.length === 0;
  part("memory", ".hint").textContent = "Allocated tensor memory. Drag to zoom in, double-click to zoom out.";
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
  for (const device of data.memory) {
    const chart = element("div");
    part("memory", ".charts").append(
      element("h3", "", `${device.device}, at most ${megabytes(device.peak)} MB`), chart);
    const options = {
      width: chart.clientWidth, height: 220, scales: { x: { time: false } },
      legend: { live: false },
      axes: [{ ...axis, label: "ms since the first event" },
        { ...axis, label: "MB", size: 70, values: (_, values) => values.map(megabytes) }],
      series: [{ label: "ms" }, { label: "MB", stroke: colour("--accent"),
        fill: `${colour("--accent")}33`, paths: uPlot.paths.stepped({ align: 1 }) }],
    };
    const plot = new uPlot(options, [device.ms, device.mb], chart);
    new ResizeObserver(() => plot.setSize({ width: chart.clientWidth, height: 220 })).observe(chart);
  }
}

drawHead();
drawFindings(drawTimeline());
for (const draw of [drawSteps, drawRanks, drawBandwidth, drawFlame, drawModules, drawOperators, drawKernels, drawRoofline, drawMarks, drawMemory]) draw();
