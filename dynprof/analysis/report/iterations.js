"use strict";
// Iterations of an inference server: by kind, and one by one.

function drawIterations() {
  const { kinds, rows, count } = data.iterations;
  section("iterations").hidden = rows.length === 0;
  if (!rows.length) return;
  const shown = rows.length < count ? ` Of ${count.toLocaleString("en")}, the longest ${rows.length} have a row.` : "";
  part("iterations", ".hint").textContent =
    "Times in ms. By kind, sizes and times are medians. An iteration takes as long as the host, or as the device from start to end of " +
    `the work that the iteration launched, whichever is longer, without work from before the recording. The server's labels tell requests and tokens.${shown}`;
  const known = (value) => value === null ? "" : whole(value);
  const amounts = [["Requests", known], ["Tokens", known], ["Time", time], ["On the host", time],
    ["Device busy", time], ["Tokens per second", known]];
  new SortedTable(part("iterations", ".table"), [["Kind", text], ["Count", whole], ...amounts], kinds, 1, "kinds");
  new SortedTable(part("iterations", ".each"), [["Kind", text], ["Iteration", whole], ...amounts], rows, 4, "iterations");
}

drawIterations();
