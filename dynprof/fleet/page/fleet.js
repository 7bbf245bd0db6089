// The list of all jobs: those with trouble first. A row is updated in place, so that nothing jumps.

import {
  ago, counted, drawSparkline, duration, element, follow, HEALTHS, load, part, say, sparkline, state, stateOf, withLocalTimes,
} from "./common.js";

const table = part("jobs"), body = table.tBodies[0], filter = part("filter"), none = part("none");
const shown = new Map();
const YOUNG_S = 3300;  // a shorter pace is not that of an hour, and says how long it is
let jobs = [];

function makeRow(job) {
  const link = element("a", "name", job.name), row = element("tr"), spark = sparkline();
  link.href = `/job?${new URLSearchParams({ job: job.name })}`;
  const cell = (kind, ...content) => element("td", kind, ...content);
  const parts = {
    row, link, spark, span: element("small", "soft"),
    state: cell("state-cell"), troubles: element("ul", "troubles"), window: element("span", "window"),
    ms: cell("number ms"), step: cell("number step"), ranks: cell("ranks"),
    outcome: element("p", "outcome"), verdict: element("p", "verdict"),
  };
  row.append(
    parts.state, cell("job", element("p", "", link, " ", parts.window), parts.troubles), cell("pace", spark, parts.span),
    parts.ms, parts.step, parts.ranks, cell("capture", parts.outcome, parts.verdict),
  );
  return parts;
}

function update(parts, job) {
  const [health, word] = stateOf(job), known = `${health} ${word}`;
  if (parts.known !== known) parts.state.replaceChildren(state(health, word));
  parts.known = known;
  parts.row.className = ["well", "troubled", "unhealthy"][job.severity];
  const troubles = job.troubles.map(withLocalTimes);
  if (parts.told !== troubles.join()) parts.troubles.replaceChildren(...troubles.map((one) => element("li", "", one)));
  parts.told = troubles.join();
  say(parts.window, job.window && job.window !== "waiting" ? job.window : job.window ? "window requested" : "");
  drawSparkline(parts.spark, job.recent_ms);
  const young = job.recent_s && job.recent_s < YOUNG_S ? ago(0, job.recent_s).replace(" ago", "") : "";
  say(parts.span, young && young !== "now" ? `last ${young}` : young);
  const pace = job.pace_ms;
  say(parts.ms, pace ? duration(pace[1]) : "–");
  parts.ms.title = pace ? `${duration(pace[0])} to ${duration(pace[2])}; the slowest is ${job.slowest}` : "";
  say(parts.step, counted(job.step));
  say(parts.ranks, ranksInWords(job));
  const last = job.capture;
  parts.outcome.classList.toggle("soft", !last);
  say(parts.outcome, last ? `${last.cut || last.outcome} ${ago(last.at)}, steps ${counted(last.steps[0])}–${counted(last.steps[1])}` : "none");
  parts.outcome.classList.toggle("bad", Boolean(last) && last.outcome === "failed");
  say(parts.verdict, last ? last.verdict || last.reason : "");
  parts.verdict.title = parts.verdict.textContent;
}

function ranksInWords(job) {
  const words = { alive: "running", stopped: "ended" };
  const found = HEALTHS.filter((one) => job.counts[one]);
  return found.map((one) => `${counted(job.counts[one])}\u00a0${words[one] ?? one}`).join(", ") || "none";
}

const textOf = (job) => [
  job.name, ...stateOf(job), ...job.troubles, job.window, job.capture?.outcome ?? "", job.capture?.verdict ?? "",
].join(" ").toLowerCase();

function draw() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean), rows = [];
  for (const job of jobs) {
    if (!shown.has(job.name)) shown.set(job.name, makeRow(job));
    const parts = shown.get(job.name);
    update(parts, job);
    const text = words.length ? textOf(job) : "";
    parts.row.hidden = !words.every((word) => text.includes(word));
    rows.push(parts.row);
  }
  const names = new Set(jobs.map((job) => job.name));
  for (const name of shown.keys()) if (!names.has(name)) shown.delete(name);
  if (rows.length !== body.children.length || rows.some((row, place) => body.children[place] !== row)) body.replaceChildren(...rows);
  const visibleRows = rows.filter((row) => !row.hidden).length;
  table.hidden = !visibleRows;
  none.hidden = visibleRows > 0;
  say(none, jobs.length ? "No job matches the filter." : "There is no job below these directories yet. A job appears when it calls dp.init().");
  const unhealthy = jobs.filter((job) => job.severity > 0).length;
  const total = `${counted(jobs.length)} ${jobs.length === 1 ? "job" : "jobs"}`;
  say(part("summary"), `${total}, ${unhealthy ? `${counted(unhealthy)} with trouble` : "all well"}`);
  document.title = unhealthy ? `(${unhealthy}) Jobs` : "Jobs";
}

filter.addEventListener("input", draw);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== filter) { event.preventDefault(); filter.focus(); }
  if (event.key === "Escape" && document.activeElement === filter) { filter.value = ""; draw(); }
  if ((event.key === "ArrowDown" || event.key === "ArrowUp") && !event.altKey) {
    const links = [...body.querySelectorAll("tr:not([hidden]) a.name")], at = links.indexOf(document.activeElement);
    const next = links[event.key === "ArrowDown" ? at + 1 : at - 1];
    if (next && (at >= 0 || document.activeElement === filter || document.activeElement === document.body)) { event.preventDefault(); next.focus(); }
  }
});
follow(async () => {
  const found = await load("/api/fleet");
  jobs = found.jobs;
  draw();
  return found.read_at;
});
