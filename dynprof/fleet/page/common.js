// What the pages share. Text of jobs is hostile until shown: it is only ever set as text.

/** Characters that hide or reorder text, and those that a terminal obeys. */
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;

export const visible = (text) =>
  String(text).replace(UNSEEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** Makes an element with text or children. */
export function element(tag, kind = "", ...content) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  made.append(...content.map((one) => (one instanceof Node ? one : visible(one))));
  return made;
}

export const part = (name) => document.getElementById(name);

/** Sets the text of an element, if it is another one. */
export function say(target, text) {
  const shown = visible(text);
  if (target.textContent !== shown) target.textContent = shown;
}

const whole = new Intl.NumberFormat("en");
export const counted = (number) => whole.format(number);

/** A step time with three digits and its unit. */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const [value, unit] = ms >= 999.5 ? [ms / 1e3, "s"] : [ms, "ms"];
  const digits = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${value.toFixed(digits)} ${unit}`;
}

export const bytes = (number) =>
  number >= 1e9 ? `${(number / 1e9).toFixed(1)} GB` : number >= 1e6 ? `${(number / 1e6).toFixed(0)} MB`
    : `${Math.max(1, Math.round(number / 1e3))} kB`;

/** How long ago a moment was, in its largest unit. */
export function ago(atS, nowS = Date.now() / 1e3) {
  const s = Math.max(0, nowS - atS);
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]])
    if (s >= length) return `${Math.floor(s / length)} ${unit} ago`;
  return s < 2 ? "now" : `${Math.floor(s)} s ago`;
}

/** A local time; with its date if that is another day. */
export function moment(atS) {
  const at = new Date(atS * 1e3), day = at.toDateString() === new Date().toDateString();
  return at.toLocaleString("sv", day ? { timeStyle: "medium" } : { dateStyle: "short", timeStyle: "medium" });
}

/** Times in UTC inside a sentence, as local ones. */
export const withLocalTimes = (text) =>
  text.replace(/\d{4}-\d\d-\d\dT[\d:.]+\+00:00/g, (at) => moment(Date.parse(at) / 1e3));

/** The health of ranks, the worst first, as in dynprof/fleet/jobs.py. */
export const HEALTHS = ["stuck", "dead", "failed", "unknown", "starting", "ending", "alive", "stopped"];
export const SIGNS = { alive: "●", starting: "◔", ending: "◑", stuck: "▲", dead: "✕", failed: "✕", unknown: "?", stopped: "○", slower: "◆", "": "–" };
export const WORDS = { alive: "running", stopped: "ended", "": "no rank yet" };

/** A sign and a word: colour is never the only difference. */
export function state(health, word = WORDS[health] ?? health) {
  const made = element("span", `state ${health || "none"}`, element("span", "sign", SIGNS[health] ?? "◆"), word);
  made.firstChild.ariaHidden = "true";
  return made;
}

/** The state that a row shows: a job with trouble whose ranks run is not just running. */
export function stateOf(row) {
  if (row.severity === 1) return ["slower", row.troubles[0].startsWith("slower") ? "slower" : "trouble"];
  if (row.severity === 0 && row.health === "dead") return ["dead", "dead"];
  return [row.health, WORDS[row.health] ?? row.health];
}

/** Loads JSON; an answer without a login leads to it. */
export async function load(path, parameters = {}) {
  const query = new URLSearchParams(parameters).toString();
  return answered(fetch(query ? `${path}?${query}` : path));
}

/** Sends JSON, with the text that only a page of this server knows; a server that began again has another one. */
export async function send(path, content) {
  const { csrf } = await load("/api/about");
  return answered(fetch(path, {
    method: "POST", body: JSON.stringify(content),
    headers: { "Content-Type": "application/json", "X-Dynprof-Csrf": csrf },
  }));
}

async function answered(asked) {
  const answer = await asked.catch(() => { throw new Error("The server does not answer."); });
  if (answer.status === 401) location.assign(`/login${location.search}`);
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error ?? answer.statusText);
  return content;
}

/** Calls a function with each new reading, and shows how old the newest one is. */
export function follow(refresh) {
  const fresh = part("fresh"), events = new EventSource("/api/events");
  let isBusy = false, isStale = false, readAt = 0, isLost = false;
  const show = () => {
    const old = Date.now() / 1e3 - readAt > 20;
    fresh.className = isLost || old ? "old" : "";
    say(fresh, !readAt ? "" : isLost ? `no connection; read ${ago(readAt)}` : `read ${ago(readAt)}`);
  };
  const update = async () => {
    if (isBusy) { isStale = true; return; }
    isBusy = true;
    try {
      readAt = await refresh();
      isLost = false;
    } catch (error) {
      isLost = true;
      console.warn(error.message);
    }
    isBusy = false;
    show();
    if (isStale) { isStale = false; update(); }
  };
  events.onmessage = update;
  events.onerror = () => { isLost = true; show(); };
  events.onopen = () => { isLost = false; show(); };
  setInterval(show, 1000);
}

/** Draws a line of values; gaps are left open. The scale begins at 0, so that noise looks small. */
export function sparkline(values, width = 132, height = 26) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("class", "spark");
  svg.setAttribute("role", "img");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  const end = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  svg.append(path, end);
  return svg;
}

export function drawSparkline(svg, values, width = 132, height = 26) {
  const known = values.filter((one) => one !== null), most = Math.max(...known, 0) || 1;
  const x = (place) => 2 + (place * (width - 6)) / Math.max(1, values.length - 1);
  const y = (value) => height - 3 - (value / most) * (height - 6);
  let line = "", isOpen = false, last = null;
  values.forEach((value, place) => {
    if (value === null) { isOpen = false; return; }
    line += `${isOpen ? "L" : "M"}${x(place).toFixed(1)} ${y(value).toFixed(1)}`;
    isOpen = true;
    last = [x(place), y(value)];
  });
  const [path, end] = svg.children;
  if (path.getAttribute("d") === line) return;
  path.setAttribute("d", line);
  end.setAttribute("r", last ? 2 : 0);
  if (last) { end.setAttribute("cx", last[0]); end.setAttribute("cy", last[1]); }
  const words = known.length ? `${duration(known[0])} a step at first, ${duration(known.at(-1))} at the end` : "no pace yet";
  svg.setAttribute("aria-label", words);
}
