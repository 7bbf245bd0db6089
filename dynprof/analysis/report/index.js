"use strict";
// The index of the page: a link to each section that has content, the one in view marked.
// Sections of tables and charts are closed at first; the index, a heading or a search opens them.

const OPEN = ["findings", "timeline", "steps", "iterations", "ranks"];  // at first

function drawIndex() {
  const index = document.getElementById("index"), links = new Map(), folds = new Map();
  const add = (target, title) => {
    const link = element("a", "", title);
    link.href = `#${target.id}`;
    link.addEventListener("click", () => folds.get(target)?.(true));
    index.append(link);
    links.set(target, link);
  };
  add(section("overview"), "Overview");
  for (const target of document.querySelectorAll("main > section:not([hidden])")) {
    add(target, target.querySelector("h2").textContent);
    folds.set(target, foldSection(target, OPEN.includes(target.id)));
  }
  folds.get(document.querySelector(":target"))?.(true);
  const every = element("button", "", "Open all");
  every.type = "button";
  every.addEventListener("click", () => folds.forEach((open) => open(true)));
  index.append(every);
  addEventListener("beforeprint", () => folds.forEach((open) => open(true)));
  const mark = () => {
    const passed = [...links.keys()].filter((one) => one.getBoundingClientRect().top < 120);
    const current = links.get(passed.at(-1) ?? section("overview"));
    for (const link of links.values()) link.toggleAttribute("aria-current", link === current);
  };
  addEventListener("scroll", mark, { passive: true });
  mark();
}

/** Makes the heading of a section a button that opens and closes it; returns how to set either. */
function foldSection(target, isOpen) {
  const head = target.querySelector("h2"), body = element("div"), button = element("button", "fold", head.textContent);
  body.append(...[...target.children].filter((one) => one !== head));
  target.append(body);
  button.type = "button";
  head.replaceChildren(button);
  const set = (open) => {
    button.setAttribute("aria-expanded", open);
    if (open) body.removeAttribute("hidden"); else body.setAttribute("hidden", "until-found");
  };
  button.addEventListener("click", () => set(body.hasAttribute("hidden")));
  body.addEventListener("beforematch", () => set(true));
  set(isOpen);
  return set;
}

drawIndex();
