"use strict";
// Kernels that follow one another and could be one.

function drawSequences() {
  const { rows, count } = data.sequences;
  section("sequences").hidden = rows.length === 0;
  if (!rows.length) return;
  const shown = rows.length < count ? `The ${rows.length} that could save most, of ${count}. ` : "";
  part("sequences", ".hint").textContent =
    `${shown}Elementwise kernels, one right after the other on a stream. Times in ms, over the whole ` +
    "capture. One kernel instead of each sequence saves at most everything but its longest kernel. " +
    "If the kernels are many of one kind, it saves only the gaps.";
  const columns = [["Operators", text], ["Line", text], ["Count", whole], ["Kernels in each", whole],
    ["Kernel time", time], ["Gaps between", time], ["Saves at most", time]];
  new SortedTable(part("sequences", ".table"), columns, rows, 6, "sequences");
}

drawSequences();
