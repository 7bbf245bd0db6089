"use strict";
// Why the device was idle, and how long launched work waited for its start.

function drawWaiting() {
  const found = data.waiting;
  if (!found) return;
  section("waiting").hidden = false;
  const idle = Object.values(found.kinds).reduce((sum, one) => sum + one, 0);
  const whenNothing = found.step === "the trace" ? "Before the first launch and after the last" : "After the last launch, while the host does nothing,";
  part("waiting", ".hint").textContent =
    `Device ${found.device} runs nothing for ${inMs(idle)} of ${found.step}. Until the next launch the host is blocked in a call or late. ` +
    "A wait for the device also counts after its call, while the host launches again, for as long as the call at most. " +
    `After the launch the work is queued.${found.kinds["nothing to do"] ? ` ${whenNothing} there is nothing to do.` : ""}`;
  const rows = [{ name: `device ${found.device}`, value: idle, bars: [found.kinds] }];
  drawBars(part("waiting", ".bars"), rows);
  drawLegend(part("waiting", ".legend"), rows);
  if (found.causes.length)
    new SortedTable(part("waiting", ".causes"), [["Cause (the first of several)", text], ["ms", time], ["%", percent]],
      found.causes.map(([name, ms]) => [name, ms, 100 * ms / idle]), 1, "causes");
  drawStreams(found);
  drawOverTime(".depth", found.depth.ms, found.depth.depth, "in the queue",
    "in the queue, all streams", { paths: uPlot.paths.stepped({ align: 1 }) });
  drawOverTime(".delays", found.delays.ms, found.delays.us, "us to start",
    "us from launch to start, the longest at a time", {});
}

const percent = (value) => `${value.toFixed(1)}`;
const micro = (value) => value === null ? "" : value.toLocaleString("en", { maximumFractionDigits: 1 });

function drawStreams({ streams, count, percentiles, behind, delay }) {
  const half = delay ? `Half of the work starts within ${micro(delay[0])} us after the call that launched it has ended. ` : "";
  const shown = streams.length < count ? `The first ${streams.length} of ${count} streams.` : "";
  part("waiting", ".queued").textContent =
    `${half}Idle times of a stream are those of the whole capture. Before its first launch and after its last it had nothing to do. ${shown}`;
  if (behind.length)
    new SortedTable(part("waiting", ".behind"), [["Kernel or copy that ran while others of its stream waited", text], ["Count", whole], ["Waiting ms, summed over the others", time]],
      behind, 2, "kernels");
  const chosen = percentiles.flatMap((one, place) => one === 50 || one === 100 ? [place] : []);
  const named = chosen.map((place) => percentiles[place] === 100 ? "most" : "median");
  const kinds = Object.keys(streams[0].kinds);
  const columns = [["Stream", text], ["Launched", whole],
    ...named.map((one) => [`Delay us, ${one}`, micro]),
    ...named.map((one) => [`Queue, ${one}`, whole]), ...kinds.map((one) => [`Idle ms: ${one}`, time])];
  new SortedTable(part("waiting", ".streams"), columns, streams.map((one) => [
    `${one.stream}`, one.count, ...chosen.map((place) => one.delay?.[place] ?? null), ...chosen.map((place) => one.depth[place]),
    ...kinds.map((kind) => one.kinds[kind]),
  ]), 1, "streams");
}

function drawOverTime(name, ms, values, axisLabel, label, paths) {
  if (ms.length < 2) return;
  const target = part("waiting", name);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
  const options = {
    width: target.clientWidth, height: 180, scales: { x: { time: false } },
    legend: { live: false },
    axes: [{ ...axis, label: "ms since the first launch" }, { ...axis, label: axisLabel, size: 70 }],
    series: [{ label: "ms" }, { label, stroke: colour("--accent"), ...paths }],
  };
  const plot = new uPlot(options, [ms, values], target);
  new ResizeObserver(() => plot.setSize({ width: target.clientWidth, height: 180 })).observe(target);
}

drawWaiting();
