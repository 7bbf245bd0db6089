"use strict";
// The critical path: its parts in each step, and the time of a step without one of them.

function drawCriticalPath() {
  const path = data.critical_path;
  if (!path) return;
  const { about, steps, count, length, what_ifs: whatIfs, names } = path;
  section("critical-path").hidden = false;
  part("critical-path", ".hint").textContent = about.join(" ") + whichSteps(steps, count);
  const drawn = steps.map((row) => ({
    name: row.number === null ? "all" : `${data.noun} ${row.number}`, value: row.length, bars: [row.parts],
    skipped: row.skipped,
  }));
  drawBars(part("critical-path", ".bars"), drawn, count);
  drawLegend(part("critical-path", ".legend"), drawn);
  if (whatIfs.length) {
    const target = part("critical-path", ".what-ifs");
    const whole = count > 1 ? `mean ${data.noun}` : steps[0].number === null ? "trace" : data.noun;
    target.append(element("h3", "", `The ${whole} of ${inMs(length)}, if something cost nothing`));
    new SortedTable(target, [["What costs nothing", text], ["Time without it, ms", time], ["Saved, ms", time],
      ["On the path, ms", time]], whatIfs, 2, "what would cost nothing");
  }
  const target = part("critical-path", ".names");
  target.append(element("h3", "", count > 1 ? `What the path of the mean ${data.noun} consists of` : "What the path consists of"));
  new SortedTable(target, [["Name", text], ["What", text], ["Pieces", whole], ["ms", time]], names, 3, "the path");
}

drawCriticalPath();
