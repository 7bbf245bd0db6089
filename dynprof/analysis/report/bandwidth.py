"""The page's data on bandwidth: copies, collectives, and links between ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynprof.analysis.measures.communication.collectives import traffic
from dynprof.analysis.measures.communication.copies import copies

if TYPE_CHECKING:
    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.ranks.bandwidth import Bandwidth
    from dynprof.analysis.ranks.comparison import Ranks

MOST_ROWS, MOST_LINKS, WIDEST = 200, 200, 32
"""The most rows and links that are shown; with more ranks than ``WIDEST`` links have no matrix."""

Data = dict[str, Any]


def bandwidth(measured: MeasuredTrace, ranks: Ranks | None) -> Data:
    """Return bandwidths in GB/s, sizes in MB and times in ms; None if unknown."""
    between = ranks.bandwidth if ranks else None
    return {
        "copies": [
            [
                " ".join(filter(None, (one.direction, _ends(one.source, one.target)))),
                one.count,
                one.time / 1e6,
                one.size / 1e6 if one.sized else None,
                one.bandwidth,
                one.large_bandwidth,
            ]
            for one in copies(measured.trace)[:MOST_ROWS]
        ],
        "collectives": _of_all(between) if between and between.traffic else _of_one(measured),
        "split": bool(between and between.traffic),
        "links": _links(between),
    }


def _ends(source: str, target: str) -> str:
    return f"({source} to {target})" if source else ""


def _of_one(measured: MeasuredTrace) -> list[list[Any]]:
    """Return the collectives of one trace, whose time includes the wait for other ranks."""
    return [
        [
            _called(one.message.kind, one.group),
            one.message.size / 1e6 if one.message.size > 0 else None,
            one.count,
            one.total / 1e6,
            one.algorithm(one.shortest),
            one.bus(one.shortest),
        ]
        for one in traffic(measured.trace, measured.messages)[:MOST_ROWS]
    ]


def _of_all(between: Bandwidth) -> list[list[Any]]:
    """Return the collectives that ranks share, with waiting and moving as separate times."""
    return [
        [
            _called(one.kind, one.group),
            one.size / 1e6 if one.size > 0 else None,
            one.count,
            one.waiting / 1e6,
            one.moving / 1e6,
            one.algorithm,
            one.bus,
        ]
        for one in between.traffic[:MOST_ROWS]
    ]


def _called(kind: str, group: str) -> str:
    group = group.replace('"', "").strip()
    if group and not group.startswith("from rank"):
        group = f"group {group}"
    return ", ".join(filter(None, (kind or "of unknown kind", group)))


def _links(between: Bandwidth | None) -> Data | None:
    """Return the links: as a matrix by sender and receiver, or the slowest as a list."""
    if between is None or not between.links:
        return None
    links = sorted(between.links, key=lambda link: link.bandwidth)
    ends = sorted({end for link in links for end in (link.source, link.target)})
    cells: dict[tuple[int, int], float] = {}
    for link in links:  # the slower of two kinds between the same ranks is shown
        rate = link.large_bandwidth or link.bandwidth
        cells.setdefault((link.source, link.target), rate)
        if not link.one_way:
            cells.setdefault((link.target, link.source), rate)
    return {
        "count": len(links),
        "ranks": ends if len(ends) <= WIDEST else [],
        "matrix": [[cells.get((row, column)) for column in ends] for row in ends]
        if len(ends) <= WIDEST
        else [],
        "rows": [
            [
                str(link),
                link.count,
                link.size / 1e6,
                link.waiting / 1e6,
                link.moving / 1e6,
                link.bandwidth,
                link.large_bandwidth,
            ]
            for link in links[:MOST_LINKS]
        ],
    }
