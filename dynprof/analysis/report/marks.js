"use strict";
// The script's own marks: moments, and ranges with their times.

function drawMarks() {
  const { rows, count } = data.marks;
  section("marks").hidden = rows.length === 0;
  if (!rows.length) return;
  part("marks", ".hint").textContent =
    (rows.length < count ? `The first ${rows.length} of ${count}. ` : "") +
    "Marks that the script set through mstx. Times in ms; First counts from the first event of the trace.";
  const columns = [["Name", text], ["Kind", text], ["Domain", text], ["Count", whole],
    ["First", time], ["Total", time], ["Longest", time]];
  new SortedTable(part("marks", ".table"), columns, rows, 5, "marks");
}
