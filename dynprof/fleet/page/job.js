// One job: its ranks, its pace, captures, requests and log.

import {
  ago, bytes, counted, duration, element, follow, load, moment, part, say, send, state, stateOf, visible, withLocalTimes,
} from "./common.js";
import { drawHistory } from "./chart.js";
import { drawLegend, RankGrid, rankName } from "./grid.js";
import { followLog } from "./log.js";
import { offerForm, updateForm } from "./arm.js";

const name = new URLSearchParams(location.search).get("job") ?? "";
const grid = new RankGrid(part("grid"), part("told"));
const known = {};
let job = null, about = null, span = "hour", place = 0, isFirst = true;

/** Draws something only if what it shows is another. */
function whenChanged(key, content, draw) {
  const text = JSON.stringify(content);
  if (known[key] === text) return;
  known[key] = text;
  draw();
}

function drawHead() {
  say(part("name"), job.name);
  document.title = `${job.severity ? "(!) " : ""}${visible(job.name)}`;
  const shown = stateOf(job);
  part("about").className = ["well", "troubled", "unhealthy"][job.severity];
  whenChanged("state", [...shown, job.window, job.baselines], () => part("state").replaceChildren(
    state(...shown), ...(job.window ? [" ", element("span", "window", job.window === "waiting" ? "window requested" : job.window)] : []),
    ...(job.baselines ? [" ", element("span", "soft", job.baselines)] : []),
  ));
  whenChanged("troubles", [job.troubles, job.has_slow_step], drawTroubles);
  const pace = job.pace_ms, hosts = `${counted(job.hosts.length)} ${job.hosts.length === 1 ? "host" : "hosts"}`;
  const facts = [["Step", counted(job.step)], ["Median step", pace ? duration(pace[1]) : "–"],
    ["Fastest to slowest", pace ? `${duration(pace[0])} to ${duration(pace[2])}` : "–"],
    ["Slowest", job.slowest ?? "–"], ["Ranks", `${counted(job.ranks)} on ${hosts}`], ["Last wrote", ago(job.wrote_at)]];
  const [resident, device] = job.memory_mb, most = job.ranks > 1 ? ", most of a rank" : "";
  if (resident) facts.push([`Memory${most}`, `${bytes(resident * 1e6)}${device ? `, device ${bytes(device * 1e6)}` : ""}`]);
  part("facts").replaceChildren(...facts.map(([term, text]) => element("div", "", element("dt", "", term), element("dd", "", text))));
  say(part("directory"), job.directory);
}

function drawTroubles() {
  const made = job.troubles.map((one) => element("li", "", withLocalTimes(one)));
  if (job.has_slow_step) {
    const link = element("a", "", "What such a step did");
    link.href = `/slow-step?${new URLSearchParams({ job: name })}`;
    made.push(element("li", "soft", link));
  }
  part("troubles").replaceChildren(...made);
}

function drawOdd() {
  const odd = part("odd"), [title, , more] = odd.children;
  odd.hidden = !job.odd.length;
  const total = job.odd.length + job.odd_left_out;
  say(title, job.ranks === 1 ? "Where it stands" : `${counted(total)} ${total === 1 ? "rank differs" : "ranks differ"} from the others`);
  odd.querySelector("tbody").replaceChildren(...job.odd.map((one) => {
    const button = element("button", "link", one.named);
    button.type = "button";
    button.addEventListener("click", () => { grid.select(one.place); });
    const age = ["stuck", "dead", "unknown"].includes(one.health) ? ago(job.read_at - one.since_last_step_s, job.read_at) : "";
    return element("tr", "", element("th", "", button), element("td", "", state(one.health)), element("td", "number", counted(one.step)),
      element("td", "number", duration(one.ms)), element("td", "number", age), element("td", "", `${one.host}, pid ${one.pid}`), element("td", "where", one.at));
  }));
  say(more, job.odd_left_out ? `${counted(job.odd_left_out)} more are not listed.` : "");
}

function drawRequests() {
  whenChanged("problems", job.problems, () => part("problems").replaceChildren(...job.problems.map((one) => element("li", "", one))));
  part("no-requests").hidden = job.requests.length > 0;
  document.querySelector("#requests ol").replaceChildren(...job.requests.map((one) => {
    const outcomes = Object.entries(one.outcomes), isShared = outcomes.length > 1 || outcomes[0][1] > 1;
    const made = element("li", one.is_open ? "open" : "", element("time", "", moment(one.at)), element("span", "soft", `request ${one.number}`));
    for (const [outcome, ranks] of outcomes) {
      const count = isShared ? `, ${counted(ranks)} ${ranks === 1 ? "rank" : "ranks"}` : "", text = one.texts[outcome];
      made.append(element("p", "", element("b", `outcome-${outcome.replace(" ", "-")}`, outcome), `${count}${text ? `: ${text}` : ""}`));
    }
    return made;
  }));
}

function drawCaptures() {
  part("no-captures").hidden = job.captures.length > 0;
  document.querySelector("#captures .scroll").hidden = !job.captures.length;
  part("trend").hidden = job.captures.filter((one) => one.is_baseline).length < 2;
  const traced = job.captures.filter((one) => one.has_trace), before = part("before"), chosen = before.value;
  before.replaceChildren(new Option("the one before it", ""), ...traced.map((one) => new Option(`steps ${one.steps[0]}–${one.steps[1]}`, one.name)));
  before.value = traced.some((one) => one.name === chosen) ? chosen : "";
  document.querySelector("#captures tbody").replaceChildren(...job.captures.map((one) => drawCapture(one, traced)));
  part("elsewhere").hidden = !job.elsewhere.length;
  document.querySelector("#elsewhere ul").replaceChildren(...job.elsewhere.map((url, at) =>
    element("li", "", element("code", "", url), ...actionsElsewhere(url, job.elsewhere[at + 1]))));
}

function actionsElsewhere(url, older) {
  const made = [action("Report", url, () => make({ kind: "report", capture: url }, `report of ${url}`)), traceLink(url)];
  if (older) made.push(action("Diff", url, () => make({ kind: "diff", capture: url, before: older }, `diff of ${url}`)));
  return made.flatMap((one) => [" ", one]);
}

function traceLink(capture) {
  const made = element("a", "button", "Trace");
  made.href = `/api/trace?${new URLSearchParams({ job: name, capture })}`;
  made.download = "";
  return made;
}

function drawCapture(one, traced) {
  const steps = `${counted(one.steps[0])}–${counted(one.steps[1])}`, [saved, ranks] = one.ranks;
  const open = element("td", "actions");
  if (one.has_trace && one.outcome !== "saving") {
    const older = traced[traced.indexOf(one) + 1];
    const trace = traceLink(one.name), title = `steps ${steps}`;
    trace.title = `${bytes(one.trace_bytes)}; in Perfetto: dynprof view ${quoted(one.folder)}`;
    open.append(action("Report", title, () => make({ kind: "report", capture: one.name }, `report of ${title}`)), trace);
    if (traced.length > 1) {
      open.append(action("Diff", title, () => {
        const against = part("before").value || older?.name || traced.find((other) => other !== one).name;
        make({ kind: "diff", capture: one.name, before: against }, `diff of ${title}`);
      }));
    }
  }
  const outcome = one.cut ? one.cut : saved < ranks ? `${one.outcome}, ${counted(saved)} of ${counted(ranks)} ranks` : one.outcome;
  return element("tr", "", element("th", "", steps, ...(ranks === 1 && job.ranks > 1 ? [element("span", "soft", ` rank ${one.rank}`)] : []), ...(one.is_baseline ? [element("span", "soft", " baseline")] : []), ...(one.trigger ? [element("span", "soft", ` after ${one.trigger}`)] : [])),
    element("td", "", moment(one.at)), element("td", `outcome-${one.outcome}`, outcome),
    element("td", "number", one.cost_ms === null ? "–" : duration(Math.max(0, one.cost_ms))),
    element("td", "verdict", one.verdict || one.reason), open);
}

function action(text, about_, run) {
  const made = element("button", "", text);
  made.type = "button";
  made.ariaLabel = `${text}, ${about_}`;
  made.addEventListener("click", run);
  return made;
}

const quoted = (text) => (/^[\w./:@%+=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** Has the server make a report, trend or diff, and opens it. */
async function make(content, title, told = part("making")) {
  const began = Date.now();
  const timer = setInterval(() => say(told, `Making the ${title}: ${Math.round((Date.now() - began) / 1e3)} s`), 1000);
  say(told, `Making the ${title} …`);
  try {
    const found = await send("/api/results", { job: name, ...content });
    if (found.page) { location.assign(found.page); say(told, ""); return; }
    showText(title, [found.output, found.messages, found.exit_code ? `Exit code ${found.exit_code}.` : ""].filter(Boolean).join("\n"));
    say(told, "");
  } catch (error) {
    say(told, error.message);
  } finally {
    clearInterval(timer);
  }
}

function showText(title, text) {
  const dialog = part("result"), shown = dialog.querySelector("pre");
  say(part("result-title"), title[0].toUpperCase() + title.slice(1));
  shown.replaceChildren(...text.split("\n").map((line) => element("span", "", line)));
  dialog.showModal();
}

function drawRankChoice() {
  const names = job.grid.rank.map((_, at) => rankName(job.grid, at)), choice = part("of-rank");
  const listed = new Set([...job.odd.map((one) => one.place), ...names.slice(0, 200).keys(), place]);
  whenChanged("choice", [...listed], () => choice.replaceChildren(...[...listed].sort((a, b) => a - b).map((at) => new Option(names[at], at))));
  choice.value = place;
}

async function drawPace() {
  const found = await load("/api/history", { job: name, place, span });
  whenChanged("history", [found, span, place], () => drawHistory(part("chart"), found));
}

async function choose(newPlace) {
  place = newPlace;
  drawRankChoice();
  await drawPace();
}

part("grid").addEventListener("rank", (event) => choose(event.detail));
part("of-rank").addEventListener("change", () => choose(Number(part("of-rank").value)));
part("stacks").addEventListener("click", () => make({ kind: "stacks" }, "stacks of all ranks", part("dumping")));
part("trend").addEventListener("click", () => make({ kind: "trend" }, "trend"));
for (const button of document.querySelectorAll(".choices button"))
  button.addEventListener("click", () => {
    span = button.value;
    for (const other of document.querySelectorAll(".choices button")) other.ariaPressed = String(other === button);
    drawPace();
  });

async function refresh() {
  try {
    about ??= await load("/api/about");
    job = await load("/api/job", { job: name });
  } catch (error) {
    if (isFirst) part("gone").hidden = false;
    throw error;
  }
  if (isFirst && job.odd.length) place = job.odd[0].place;
  part("stacks").hidden = !job.live;
  part("content").hidden = false;
  part("gone").hidden = true;
  drawHead();
  drawRankChoice();
  grid.show(job.grid, job.hosts, job.pace_ms?.[1]);
  whenChanged("odd", [job.odd, job.odd_left_out], drawOdd);
  whenChanged("requests", job.requests, drawRequests);
  whenChanged("config", job.config_at, () => updateForm().catch(() => { known.config = ""; }));
  whenChanged("captures", [job.captures, job.elsewhere], drawCaptures);
  if (isFirst || Date.now() - known.drawnAt > 30_000) {
    known.drawnAt = Date.now();
    await drawPace();
  }
  if (isFirst) {
    isFirst = false;
    followLog(name);
    if (about.allows_arm) await offerForm(name);
  }
  return job.read_at;
}

drawLegend(part("legend"));
follow(refresh);
