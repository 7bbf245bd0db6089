"use strict";
// The index of the page: a link to each section that has content, the one in view marked.

function drawIndex() {
  const index = document.getElementById("index"), links = new Map();
  const add = (target, title) => {
    const link = element("a", "", title);
    link.href = `#${target.id}`;
    index.append(link);
    links.set(target, link);
  };
  add(section("overview"), "Overview");
  for (const target of document.querySelectorAll("main > section:not([hidden])"))
    add(target, target.querySelector("h2").textContent);
  const mark = () => {
    const passed = [...links.keys()].filter((one) => one.getBoundingClientRect().top < 120);
    const current = links.get(passed.at(-1) ?? section("overview"));
    for (const link of links.values()) link.toggleAttribute("aria-current", link === current);
  };
  addEventListener("scroll", mark, { passive: true });
  mark();
}

drawIndex();
