// The log of a job, live; the server keeps the newest records.

import { element, part } from "./common.js";

const MAX_RECORDS = 500;
const RECORD = /^(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)\.\d{3} (\w+) +(.*?)  ([^]*)$/;

export function followLog(job) {
  const list = document.querySelector("#log .records"), only = part("warnings");
  only.addEventListener("change", () => list.classList.toggle("only-warnings", only.checked));
  const events = new EventSource(`/api/log?${new URLSearchParams({ job })}`);
  events.onmessage = (event) => {
    const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
    const { records, is_all: isAll } = JSON.parse(event.data);
    if (isAll) list.replaceChildren();  // the server was restarted, and numbers its records again
    list.append(...records.map(drawn));
    while (list.children.length > MAX_RECORDS) list.firstChild.remove();
    if (isAtEnd) list.scrollTop = list.scrollHeight;
  };
}

function drawn(record) {
  const [, day, time, level, by, text] = RECORD.exec(record) ?? ["", "", "", "", "", record];
  const made = element("li", level.toLowerCase(), element("time", "", time));
  made.firstChild.title = `${day} ${time}`;
  if (level && level !== "INFO") made.append(element("b", "", level.toLowerCase()), " ");
  const lines = text.split("\n").map((line) => line.trim());
  made.append(element("i", "", by), element("span", "", ...lines.flatMap((line, place) => (place ? [document.createElement("br"), line] : [line]))));
  return made;
}
