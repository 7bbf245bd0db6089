"use strict";
// How fast data moved: copies, collectives, and a matrix of the links between ranks.

const inGigabytes = (value) => value === null ? "" : value.toLocaleString("en", { maximumSignificantDigits: 3 });
const inMegabytes = (value) => value === null ? "unknown" : value.toLocaleString("en", { maximumSignificantDigits: 4 });

function drawBandwidth() {
  const { copies, collectives, split, links } = data.bandwidth, { communication } = data.kernels;
  section("bandwidth").hidden = !copies.length && !collectives.length && !communication.length;
  if (section("bandwidth").hidden) return;
  part("bandwidth", ".hint").textContent =
    "Times are of the whole capture. A value is empty or unknown if the trace does not have the size, or the number of ranks. Bus bandwidth is that of nccl-tests: compare it with the hardware's.";
  const target = part("bandwidth", ".tables");
  if (links) drawLinks(target, links);
  if (collectives.length) {
    target.append(element("h3", "", split ? "Collectives that the ranks share" : "Collectives of this rank"),
      element("p", "hint", split ? "A rank waits until the last one arrives; then data moves."
        : "Their time includes the wait for other ranks, so the bandwidth is that of the shortest one."));
    const times = split ? [["Waiting ms", time], ["Moving ms", time]] : [["Total ms", time]];
    new SortedTable(target, [["Collective", text], ["MB", inMegabytes], ["Count", whole], ...times,
      ["Algorithm GB/s", inGigabytes], ["Bus GB/s", inGigabytes]], collectives, 3, "collectives");
  }
  if (communication.length) {
    target.append(element("h3", "", "Kernels that communicate"));
    new SortedTable(target, OF_KERNELS, communication, 3, "kernels that communicate");
  }
  if (copies.length) {
    target.append(element("h3", "", "Copies of the device"));
    new SortedTable(target, [["Direction", text], ["Count", whole], ["Total ms", time],
      ["MB", inMegabytes], ["GB/s", inGigabytes], ["GB/s, of 1 MB and more", inGigabytes]], copies, 2, "copies");
  }
}

function drawLinks(target, { ranks, matrix, rows, count }) {
  if (ranks.length) {
    target.append(element("h3", "", "From rank (row) to rank (column), in GB/s while data moves"));
    const scroll = element("div", "scroll"), table = element("table", "matrix");
    const head = element("tr");
    head.append(element("th"), ...ranks.map((rank) => element("th", "", String(rank))));
    table.append(head);
    const fastest = Math.max(...matrix.flat().filter((value) => value !== null));
    matrix.forEach((row, place) => {
      const line = element("tr");
      line.append(element("th", "", String(ranks[place])));
      row.forEach((value, column) => {
        const cell = element("td", "", value === null ? "" : inGigabytes(value));
        if (value !== null) {
          cell.style.setProperty("--slow", `${Math.round(70 * (1 - value / fastest))}%`);
          cell.title = `from rank ${ranks[place]} to rank ${ranks[column]}: ${inGigabytes(value)} GB/s`;
        }
        line.append(cell);
      });
      table.append(line);
    });
    scroll.append(table);
    target.append(scroll);
  }
  target.append(element("h3", "", rows.length < count ? `The ${rows.length} slowest links of ${count}` : "Links"));
  new SortedTable(target, [["Link", text], ["Count", whole], ["MB", inMegabytes], ["Waiting ms", time],
    ["Moving ms", time], ["GB/s", inGigabytes], ["GB/s, of 1 MB and more", inGigabytes]], rows, 4, "links");
}
