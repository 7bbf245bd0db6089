"use strict";
// Device time by category of kernels, and kernels by duration.

function drawCategories() {
  const { rows, durations } = data.categories;
  section("categories").hidden = rows.length === 0;
  if (!rows.length) return;
  part("categories", ".hint").textContent =
    "Times in ms, over the whole capture. The operator that launched a kernel decides its category, " +
    "else the kernel's name. Copy and memset are those of the copy engines.";
  const share = (value) => `${value.toFixed(1)}%`;
  const columns = [["Category", text], ["Device", whole], ["Count", whole], ["Time", time],
    ["Share of the device's time", share]];
  new SortedTable(part("categories", ".table"), columns, rows, 3, "categories");
  const shown = [["Duration", text], ["Count", whole], ["Time", time]];
  new SortedTable(part("categories", ".durations"), shown, durations, null, "durations");
}

drawCategories();
