"""The content of a report, as plain data, and the page that draws it."""

from __future__ import annotations

import html
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dynprof.analysis.findings.rules import findings_among
from dynprof.analysis.measures.difference import recording_times
from dynprof.analysis.measures.memory import memory_timeline
from dynprof.analysis.measures.timeline.breakdown import (
    COMMUNICATION,
    COMPUTING,
    IDLE,
    RECORDING,
    ms,
)
from dynprof.analysis.measures.timeline.phase_times import LOADING, REST, mean_phases
from dynprof.analysis.measures.timeline.steps import median_of
from dynprof.analysis.reading.events import CALLS, FRAMES
from dynprof.analysis.reading.spans import ROOT, distinct
from dynprof.analysis.report.sections import (
    bandwidth,
    categories_section,
    in_ms,
    iterations_section,
    kernels_data,
    marks,
    modules_data,
    operators_data,
    path_section,
    path_sentence,
    roofline_data,
    sequences_section,
    steps_to_draw,
    variation_sentence,
    waiting,
)
from dynprof.analysis.report.timeline import timeline
from dynprof.errors import CaptureError
from dynprof.runtime.plural import counted, number, sentence, spanned
from dynprof.runtime.safe_write import write_atomic
from dynprof.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynprof.analysis.findings.finding import Finding
    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.timeline.breakdown import Breakdown
    from dynprof.analysis.measures.user_code import CallTree
    from dynprof.analysis.rank_comparison.comparison import Ranks
    from dynprof.captures.manifest import Cost, Manifest

SLOWED = 1.15
"""Ratio of a step's time with and without recording from which the report warns."""
WORST, MAX_SENTENCES = 3, 3
"""Findings that are shown, and sentences of the verdict, at most."""
SHOWN = ("title", "share", "of", "detail", "saves", "advice")
"""The attributes of a finding that the page shows."""
MAX_STEPS, MAX_POINTS, MAX_RANKS, MAX_DIFFERENCES = 100, 1500, 64, 40
"""Steps and points of a drawing, and rows of ranks and of differences, at most."""
THINNEST = 1 / 5000
"""Share of the time below which a frame is left out of the flame graph."""
NOT_MEASURABLE = "not measurable"
"""Text for a cost that the variation of the steps hides."""

Data = dict[str, Any]
REPORT = "report.html"
"""Name of the file."""
_MARK = re.compile(r"\{\{(\w+)\}\}")
_STYLES = ("bundled/uPlot.min.css", "page.css")
_SCRIPTS = (
    "bundled/uPlot.iife.js",
    "bars.js",
    "flame.js",
    "table.js",
    "modules.js",
    "roofline.js",
    "marks.js",
    "bandwidth.js",
    "timeline.js",
    "page.js",
    "critical_path.js",
    "waiting.js",
    "sequences.js",
    "categories.js",
    "iterations.js",
    "index.js",
)


def contents(
    measured: MeasuredTrace,
    ranks: Ranks | None = None,
    usual: str = "",
    found: Sequence[Finding] | None = None,
) -> Data:
    """Return the content of a report.

    Args:
        measured: The trace that it is about.
        ranks: The ranks of its window, if several are compared.
        usual: How it compares with the last baseline, in a sentence.
        found: Its worst findings, if they are known.
    """
    steps = measured.breakdown
    found = worst_findings(measured, ranks) if found is None else found
    return {
        "title": _title(measured),
        "made_by": f"dynprof {__version__}",
        "verdict": " ".join(filter(None, [*_headline(measured, ranks), usual])),
        "findings": [_finding(measured, one) for one in found],
        "timeline": timeline(measured),
        "noun": steps.noun,
        "steps": _steps(measured, steps),
        "iterations": iterations_section(measured),
        "critical_path": path_section(measured),
        "flame": _flame(measured, measured.tree),
        "flame_on_device": _flame(measured, measured.tree_on_device)
        if len(measured.launches.work)
        else None,
        "flame_without": _outside_of_flames(measured),
        "modules": modules_data(measured),
        "roofline": roofline_data(measured),
        "operators": operators_data(measured),
        "kernels": kernels_data(measured),
        "categories": categories_section(measured),
        "sequences": sequences_section(measured),
        "memory": _memory(measured),
        "marks": marks(measured),
        "ranks": _ranks(measured, ranks) if ranks else None,
        "waiting": waiting(measured),
        "bandwidth": bandwidth(measured, ranks),
        "about": about(measured),
        "damaged": measured.truncation.damaged,
        "warnings": _warnings(measured),
    }


def _headline(measured: MeasuredTrace, ranks: Ranks | None) -> list[str]:
    """Return the most important sentences; a rank or a link that others wait for comes first."""
    length, *others = measured.without_outliers.breakdown.sentences()
    more = [*path_sentence(measured), *variation_sentence(measured)]
    found = [length, *_notably_different(measured), *others[:1], *more]
    about_ranks = _rank_sentences(ranks)[:1]
    is_first = ranks is not None and bool(ranks.stragglers() or ranks.bandwidth.words())
    found = about_ranks + found if is_first else found[:2] + about_ranks + found[2:]
    return [*found, *others[1:]][:MAX_SENTENCES]


def _finding(measured: MeasuredTrace, found: Finding) -> Data:
    """Return what the page shows of a finding; times in ns since the first event of the trace.

    A finding on all of a step shows a usual one.
    """
    usual = measured.without_outliers.marked
    *_, begin, length = sorted(usual, key=lambda step: step[2])[len(usual) // 2]
    begin, length = found.at or (begin, length)
    first = int(measured.trace.spans["start"].min())
    return {name: getattr(found, name) for name in SHOWN} | {"at": [begin - first, length]}


def _rank_sentences(ranks: Ranks | None) -> list[str]:
    """Return the sentences about the ranks."""
    return [sentence(one) for one in ranks.words()] if ranks else []


def _title(measured: MeasuredTrace) -> str:
    """Return the title: the steps, the rank and the host of the capture."""
    numbers = [number for number, _, _ in measured.marked if number is not None]
    noun = measured.breakdown.noun
    steps = spanned(min(numbers), max(numbers), noun).capitalize() if numbers else "A capture"
    return f"{steps}, rank {measured.rank}, {measured.host or measured.path.name}"


def worst_findings(measured: MeasuredTrace, ranks: Ranks | None = None) -> list[Finding]:
    """Return the findings that a report shows, the worst first.

    Args:
        measured: The trace.
        ranks: The ranks of its window, if several are compared.
    """
    return findings_among(measured, ranks)[:WORST]


def verdict(measured: MeasuredTrace, usual: str = "") -> list[str]:
    """Return where the time of a step goes, in sentences; damage of the file comes first.

    Args:
        measured: The trace.
        usual: How it compares with the last baseline, in a sentence.
    """
    slowed = [text for text in (_compared(measured), _slowed(measured)) if text]
    said = [str(measured.without_outliers.breakdown), *filter(None, [usual])]
    missing = measured.truncation.sentences()
    return [
        *(missing + said if measured.truncation.damaged else said + missing),
        *map(sentence, _cut_short(measured)),
        *path_sentence(measured),
        *variation_sentence(measured),
        *slowed,
    ]


def _notably_different(measured: MeasuredTrace) -> list[str]:
    """Return how the window's steps compare with the hour before, if that differs much."""
    if (manifest := measured.manifest) is None or not (said := _compared(measured)):
        return []
    hour_ms, during_ms = manifest.cost.step_hour_ms, _usual_ms(measured)
    is_like = not hour_ms or not during_ms or 1 / SLOWED < during_ms / hour_ms < SLOWED
    return [] if is_like else [said]


def _compared(measured: MeasuredTrace) -> str:
    """Return how the window's steps compare with the hour before, if that is known."""
    if (manifest := measured.manifest) is None:
        return ""
    hour_ms, during_ms = manifest.cost.step_hour_ms, _usual_ms(measured)
    if not hour_ms or not during_ms:
        return ""
    said = f"In the hour before the window, a step took {ms(hour_ms * 1e6)} (median)"
    return f"{said}." if measured.breakdown.marked else f"{said}; in it, {ms(during_ms * 1e6)}."


def _usual_ms(measured: MeasuredTrace) -> float | None:
    """Return the time of a step in the window, in ms, of which the verdict has the median too.

    Of two steps the shorter one counts. If no step is marked, it is the mean of the manifest.
    """
    if measured.breakdown.marked:
        lengths = sorted(length for *_, length in measured.marked)
        return (lengths[0] if len(lengths) == 2 else median_of(lengths)) / 1e6
    return measured.manifest.cost.step_during_ms if measured.manifest else None


def _slowed(measured: MeasuredTrace) -> str:
    """Return by how much recording slowed the job, if that is much.

    The median of the steps decides, with the time inside ``step()``: the verdict names it, and a
    checkpoint in one step does not change it. Of two steps the shorter one does.
    """
    if (manifest := measured.manifest) is None:
        return ""
    before_ms, during_ms = manifest.cost.step_before_ms, _usual_ms(measured)
    if not before_ms or not during_ms or during_ms < SLOWED * before_ms:
        return ""
    said = f"Recording made the steps {during_ms / before_ms - 1:.0%} longer, {ms(during_ms * 1e6)}"
    said += f" on the host instead of {ms(before_ms * 1e6)}"
    said += ", if these steps did the same work as the others"
    if manifest.backend == "marks":
        return f"{said}."  # marks alone are the least detail
    said += ": code that runs much Python has too large a share here"
    if manifest.backend == "python" or not manifest.request.config.get("with_stack"):
        return f"{said}."  # it is all stacks, or has none
    return f"{said}; recording without stacks slows less."


def _steps(measured: MeasuredTrace, steps: Breakdown) -> Data:
    """Return where the time of steps goes, in ms; the phases are those of the host's steps.

    ``skipped`` is the number of steps before one that are not drawn.
    """
    phases = {step[:2]: one for step, one in zip(measured.marked, measured.phases, strict=True)}
    outliers = {step[:2] for step in measured.outliers}
    recorded = {step[:2]: time for step, time in recording_times(measured).items() if time}
    for step, time in recorded.items():
        phases[step] = {**phases[step], REST: phases[step][REST] - time, RECORDING: time}
    places = steps_to_draw([length for *_, length in steps.steps], MAX_STEPS)
    if measured.truncation.host_incomplete:
        places = []
    drawn = [steps.steps[place] for place, _ in places]
    columns = steps.parts_of(drawn)
    times = zip(*(column.tolist() for column in columns.values()), strict=True)
    rows = [
        {
            "number": step[0],
            "length": sum(own) / 1e6,
            "parts": _in_words(measured, in_ms(dict(zip(columns, own, strict=True)))),
            "phases": in_ms(phases.get(step[:2], {})),
            "outlier": step[:2] in outliers,
            "skipped": skipped,
        }
        for step, own, (_, skipped) in zip(drawn, times, places, strict=True)
    ]
    return {"on_host": steps.on_host, "count": len(steps.steps), "rows": rows}


def _in_words(measured: MeasuredTrace, parts: dict[str, float]) -> dict[str, float]:
    """Return parts of a step by the names that fit the trace: a host does not compute or idle."""
    if not measured.breakdown.on_host:
        return parts
    names = {COMPUTING: "in operators", IDLE: "Python or waiting"}
    if measured.trace.category(CALLS).any():
        names = {COMPUTING: "in recorded calls", IDLE: "outside of recorded calls"}
    return {names.get(name, name): time for name, time in parts.items()}


def _outside_of_flames(measured: MeasuredTrace) -> str:
    """Return how much data loading the flame graph of the host does not show, in a sentence."""
    time = mean_phases(measured.phases)[LOADING]
    if not time or measured.trace.category(FRAMES, CALLS).any():
        return ""
    return f"Data loading, {ms(time)} of {measured.breakdown.a_step}, is not in it without stacks."


def _flame(measured: MeasuredTrace, tree: CallTree) -> Data:
    """Return a call tree without frames that are too thin to see; times in us."""
    total = list(tree.self_ns)
    for place in range(len(total) - 1, -1, -1):
        if tree.parent[place] != ROOT:
            total[tree.parent[place]] += total[place]
    least = THINNEST * sum(tree.self_ns)
    places: dict[int, int] = {ROOT: ROOT}
    names: dict[int, int] = {}
    nodes: list[tuple[int, int, int]] = []
    for place, outer in enumerate(tree.parent):
        if total[place] > least and outer in places:
            places[place] = len(nodes)
            name = names.setdefault(tree.name[place], len(names))
            nodes.append((name, places[outer], total[place] // 1000))
    return {
        "names": [measured.trace.tables["name"][name] for name in names],
        "name": [node[0] for node in nodes],
        "parent": [node[1] for node in nodes],
        "total": [node[2] for node in nodes],
        "all": sum(tree.self_ns) // 1000,
        "hidden": len(total) - len(nodes),
    }


def _memory(measured: MeasuredTrace) -> list[Data]:
    """Return allocated memory over time by device, in ms and MB, with every visible peak.

    The device with the highest peak comes first.
    """
    found = []
    for device, (times, totals) in memory_timeline(measured.trace).items():
        kept = _peaks(times, totals)
        found.append(
            {
                "device": device,
                "ms": (times[kept] / 1e6).tolist(),
                "mb": (totals[kept] / 1e6).tolist(),
                "peak": int(totals.max()) / 1e6,
            }
        )
    return sorted(found, key=lambda device: -device["peak"])


def _peaks(times: Any, totals: Any) -> Any:
    """Return the indexes of the highest and the lowest point in each slice of the time."""
    if len(times) <= MAX_POINTS:
        return np.arange(len(times))
    slices = (times - times[0]) * (MAX_POINTS // 2 - 1) // max(1, int(times[-1] - times[0]))
    kept = []
    for order in (totals, -totals):
        ranked = np.lexsort((order, slices))
        last = np.append(slices[ranked][1:] != slices[ranked][:-1], [True])
        kept.append(ranked[last])
    return distinct(np.concatenate(kept))


def _ranks(measured: MeasuredTrace, ranks: Ranks) -> Data:
    """Return the mean step of each rank, and the operators of two ranks; times in ms."""
    slowest, median = ranks.slowest(), ranks.median()
    means = sorted(ranks.means(), key=lambda mean: -(mean.length - mean.waiting))
    first = [mean for mean in means if mean.rank in (slowest, median)]
    rows = list({mean.rank: mean for mean in (*first, *means)}.values())[:MAX_RANKS]
    return {
        "count": len(ranks),
        "verdicts": _rank_sentences(ranks),
        "slowest": slowest,
        "chosen": ranks.slowest_and_why(),
        "median": median,
        "rows": [
            {
                "rank": mean.rank,
                "length": mean.length / 1e6,
                "parts": _in_words(
                    measured,
                    {
                        COMPUTING: mean.computing / 1e6,
                        COMMUNICATION: mean.waiting / 1e6,
                        IDLE: max(0.0, mean.length - mean.computing - mean.waiting) / 1e6,
                    },
                ),
            }
            for mean in sorted(rows, key=lambda mean: mean.rank)
        ],
        "differences": [
            [name, where, count, other, self_ns / 1e6, others / 1e6]
            for name, where, count, other, self_ns, others in ranks.operator_differences(
                slowest, median
            )[:MAX_DIFFERENCES]
        ],
    }


def unattributed(measured: MeasuredTrace) -> str:
    """Return how much of the devices' work belongs to no operator, in a sentence."""
    unknown = measured.operators.device_unknown
    if not unknown:
        return ""
    whole = int(measured.trace.spans["length"][measured.launches.work].sum())
    return (
        f"Of the devices' {ms(whole)} of work, {ms(unknown)} belong to no operator: their launches "
        "are not in the trace, or no operator was recorded around them."
    )


def _about_counters(measured: MeasuredTrace) -> str:
    """Return where CUPTI's counters are, and what they do to times; empty if there are none."""
    if not (count := len(measured.trace.counters)):
        return ""
    return (
        f"CUPTI's counters of {counted(count, 'kernel')} are in operator_counters.csv, which "
        "dynprof analyse writes. To count, CUPTI runs kernels one by one, some of them repeatedly: "
        "times are not those of the job."
    )


def _warnings(measured: MeasuredTrace) -> list[str]:
    """Return what is missing in the capture, in sentences."""
    found = [*measured.truncation.sentences(), _about_counters(measured), unattributed(measured)]
    if measured.manifest:
        found += [*_cut_short(measured), *measured.manifest.remarks, _slowed(measured)]
    return [one for one in found if one]


def _cut_short(measured: MeasuredTrace) -> list[str]:
    """Return why requested steps, or events of theirs, are not in the capture."""
    if not measured.manifest:
        return []
    reason, lost = measured.manifest.reason, measured.manifest.lost
    return [f"closed early: {reason}", *lost] if reason else [*lost]


def about(measured: MeasuredTrace) -> list[tuple[str, str]]:
    """Return facts about the capture: its origin and its cost."""
    found = [
        ("file", measured.path.name),
        ("rank", str(measured.rank)),
        ("ranks of the job", str(measured.world_size or "")),
        ("host", measured.host),
        ("device", measured.device_name),
        ("events", f"{len(measured.trace.spans['start']):,}"),
        ("trace", f"{_size(measured.trace.size)} uncompressed"),
    ]
    if measured.manifest:
        found += _recorded(measured.manifest)
    return [(name, value) for name, value in found if value]


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.1f} kB"


def _recorded(manifest: Manifest) -> list[tuple[str, str]]:
    steps, cost = manifest.steps, manifest.cost
    measured = {
        "opening": cost.open_ms,
        "closing": cost.close_ms,
        "saving, during the training": cost.save_ms,
        "a step in the hour before (median)": cost.step_hour_ms,
        "a step before": cost.step_before_ms,
        "a step while recording": cost.step_during_ms,
        "a step after": cost.step_after_ms,
    }
    return [
        ("recorded", f"{number(steps.recorded)} of {spanned(steps.first, steps.last)}"),
        ("by", ", ".join((manifest.backend, *manifest.activities))),
        ("with", ", ".join(_switched_on(manifest))),
        ("versions", ", ".join(f"{name} {value}" for name, value in manifest.versions.items())),
        ("from", manifest.opened_at),
        ("to", manifest.closed_at),
        *((name, ms(value * 1e6)) for name, value in measured.items() if value is not None),
        ("lost by the job in all", _lost(manifest.cost)),
    ]


def _switched_on(manifest: Manifest) -> list[str]:
    """Return the settings of the config that are true."""
    config = manifest.request.config
    inner = config.get("experimental_config")
    both = {**config, **(inner if isinstance(inner, dict) else {})}
    return sorted(name for name, value in both.items() if value is True)


def _lost(cost: Cost) -> str:
    """Return the total cost of a capture; empty if it has not been counted yet."""
    if cost.is_hidden:
        return NOT_MEASURABLE
    return "" if cost.extra_ms is None else ms(cost.extra_ms * 1e6)


_PARTS = Path(__file__).parent


def write_report(
    measured: MeasuredTrace,
    path: Path,
    ranks: Ranks | None = None,
    usual: str = "",
    found: Sequence[Finding] | None = None,
) -> Path:
    """Write the report of a trace.

    Args:
        measured: The trace.
        path: The file to write.
        ranks: The ranks of its window, if several are compared.
        usual: How it compares with the last baseline, in a sentence.
        found: Its worst findings, if they are known.

    Raises:
        CaptureError: This installation lacks a part of the page.
        OSError: The file cannot be written.
    """
    data = contents(measured, ranks, usual, found)
    if data["timeline"]:  # The page finds the trace from its own folder, wherever both are moved.
        trace = os.path.relpath(measured.path.absolute(), path.absolute().parent)
        data["timeline"]["file"] = trace
    write_page(path, "page.html", measured.path.name, data, _SCRIPTS)
    return path


def write_page(path: Path, page: str, title: str, data: Data, scripts: Sequence[str]) -> None:
    """Write a page with its styles, scripts and data in it.

    Args:
        path: The file to write.
        page: The page, a part of the package.
        title: Its title.
        data: What the scripts draw.
        scripts: The scripts, parts of the package, in their order.

    Raises:
        CaptureError: This installation lacks a part of the page.
        OSError: The file cannot be written.
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    parts = {
        "title": html.escape(title),
        "description": html.escape(str(data["verdict"])),
        "styles": "".join(f"<style>{_part(name)}</style>\n" for name in _STYLES),
        "scripts": "".join(f"<script>{_part(name)}</script>\n" for name in scripts),
        # In a script element only "</script" and "<!--" are markup.
        "data": text.replace("<", "\\u003c"),
    }
    write_atomic(path, _MARK.sub(lambda mark: parts[mark[1]], _part(page)))


def _part(name: str) -> str:
    """Return a part of the page from the package.

    Raises:
        CaptureError: The part is missing.
    """
    try:
        return (_PARTS / name).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise CaptureError(
            f"{error.filename} is missing: it is part of the installation, so install dynprof "
            "with pip (from a checkout: pip install -e .)"
        ) from error
