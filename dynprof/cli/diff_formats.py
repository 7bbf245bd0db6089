"""The result of ``dynprof diff`` in Markdown, JUnit XML and JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from dynprof.cli.terminal_tables import shortened
from dynprof.journal.journal import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynprof.analysis.measures.difference import Growth, StepChange

KERNEL = "kernel"
"""The subject of the analysis whose names have templates."""
LONGEST_NAME = 120
"""Cells of a name, except in JSON: some have thousands. Names that differ later have more."""


@dataclass(frozen=True)
class Verdict:
    """Whether a step takes longer than ``--fail-over`` allows.

    Attributes:
        failed: Whether it does.
        limit: The allowed extra time, as a share of the first capture's step.
        text: The same as a line.
    """

    failed: bool
    limit: float
    text: str


@dataclass(frozen=True)
class Difference:
    """What ``dynprof diff`` prints.

    Attributes:
        names: The captures, in words.
        a_step: What the times are of: a step, or a whole trace without steps.
        whole_ns: Duration of the mean step in the first capture, and in the second.
        change: Its median and scatter; None if unknown.
        rows: The largest changes.
        remarks: What the user must know to read them.
        not_comparable: The reasons why the numbers are not comparable; usually empty.
        verdict: The result for ``--fail-over``; None without it, or if it cannot be decided.
    """

    names: tuple[str, str]
    a_step: str
    whole_ns: tuple[float, float]
    change: StepChange | None
    rows: Sequence[Growth]
    remarks: Sequence[str]
    not_comparable: Sequence[str]
    verdict: Verdict | None

    @property
    def title(self) -> str:
        """The times of the mean step, as text, and of the median step if there are several."""
        said = f"{self.a_step}: {_in_both(self.whole_ns)}"
        if self.change is None or max(self.change.steps) < 2:
            return said
        median = _in_both(self.change.median_ns)
        return f"{self.a_step}, mean: {_in_both(self.whole_ns)}; median: {median}"

    @property
    def captures(self) -> list[str]:
        """A line for each capture that says what 1 and 2 are."""
        return [f"{place}: {printable(name)}" for place, name in enumerate(self.names, 1)]

    @property
    def notes(self) -> list[str]:
        """The remarks, and the reasons why the numbers are not comparable."""
        reasons = (f"not comparable: {reason}" for reason in self.not_comparable)
        return [printable(text) for text in (*self.remarks, *reasons)]


def as_markdown(found: Difference) -> str:
    """Return a summary for a pull request."""
    lines = [f"**dynprof diff**, {found.title}", ""]
    if found.verdict:
        lines += [_escaped(found.verdict.text), ""]
    if found.rows:
        lines += ["| by | name | ms 1 | ms 2 | change | % |", "|---|---|---:|---:|---:|---:|"]
        lines += [
            f"| {row.by} | {_code(name)} | {_times(row, ' | ')} |"
            for row, name in zip(found.rows, cut_names(found.rows), strict=True)
        ]
    else:
        lines.append("Nothing changed.")
    notes = [f"- {_escaped(note)}" for note in (*found.captures, *found.notes)]
    return "\n".join([*lines, "", *notes])


def as_junit(found: Difference) -> str:
    """Return JUnit XML with one test case: that a step takes no longer than ``--fail-over`` allows.

    Captures that are not comparable are an error of the test.
    """
    error = "; ".join(map(printable, found.not_comparable))
    failed = bool(found.verdict and found.verdict.failed)
    time_ns = found.change.median_ns if found.change else found.whole_ns
    seconds = f"{time_ns[1] / 1e9:.6f}"
    suites = ET.Element("testsuites")
    suite = ET.SubElement(
        suites, "testsuite", name="dynprof diff", tests="1", failures=str(int(failed)),
        errors=str(int(bool(error))), time=seconds,
    )  # fmt: skip
    case = ET.SubElement(suite, "testcase", classname="dynprof.diff", name="step", time=seconds)
    if error:
        ET.SubElement(case, "error", message=f"not comparable: {error}")
    elif failed and found.verdict:
        ET.SubElement(case, "failure", message=found.verdict.text)
    rows = [
        f"{row.by} {name}: {_times(row, ', ')}"
        for row, name in zip(found.rows, cut_names(found.rows), strict=True)
    ]
    text = [*found.captures, found.title, "by name: ms in 1, ms in 2, change, %", *rows]
    verdict = [found.verdict.text] if found.verdict else []
    ET.SubElement(case, "system-out").text = "\n".join([*text, *found.notes, *verdict])
    ET.indent(suites)
    written: bytes = ET.tostring(suites, encoding="us-ascii", xml_declaration=True)
    return written.decode()


def as_json(found: Difference) -> str:
    """Return everything as a JSON object; times are in ns."""
    change, verdict = found.change, found.verdict
    step = {"of": found.a_step, "mean_ns": found.whole_ns}
    if change:
        step |= {"median_ns": change.median_ns, "steps": change.steps, "scatter": change.scatter}
    return json.dumps(
        {
            "captures": found.names,
            "step": step,
            "rows": [
                {"by": row.by, "name": row.name, "count": row.count, "time_ns": row.time_ns,
                 "change_ns": row.cost_ns}
                for row in found.rows
            ],
            "remarks": found.remarks,
            "not_comparable": found.not_comparable,
            "fail_over": verdict and {"limit": verdict.limit, "failed": verdict.failed,
                                      "text": verdict.text},
        },
        indent=2,
    )  # fmt: skip


def _in_both(times_ns: tuple[float, float]) -> str:
    before, after = (time / 1e6 for time in times_ns)
    return f"{before:,.3f} ms in 1, {after:,.3f} ms in 2 ({after - before:+,.3f} ms)"


def _times(row: Growth, between: str) -> str:
    before, after = (f"{time / 1e6:,.3f}" for time in row.time_ns)
    return between.join((before, after, f"{row.cost_ns / 1e6:+,.3f}", percent(row)))


def percent(row: Growth) -> str:
    """Return the change as a share of the time in the first capture; ``new`` if it had none."""
    if row.time_ns[0]:
        return f"{row.cost_ns / row.time_ns[0]:+.1%}"
    return "new" if row.time_ns[1] else ""


def cut_names(rows: Sequence[Growth], *, templates: bool = False) -> list[str]:
    """Return the names of rows without what makes them long; control characters are escaped.

    Names that would become equal keep more, so that no two rows look the same.

    Args:
        rows: The rows.
        templates: Whether kernels keep the arguments of their templates.
    """
    from dynprof.analysis.measures.timeline.kernels import without_templates

    whole, width = [printable(row.name) for row in rows], LONGEST_NAME
    found = [
        shortened(without_templates(name) if row.by == KERNEL and not templates else name, width)
        for row, name in zip(rows, whole, strict=True)
    ]
    longest = max(map(len, whole), default=0)
    while True:
        shown = [(row.by, name) for row, name in zip(rows, found, strict=True)]
        alike = [place for place, both in enumerate(shown) if shown.count(both) > 1]
        if not alike or width > 2 * longest:
            return found
        for place in alike:
            found[place] = shortened(whole[place], width)
        width *= 2


def _code(name: str) -> str:
    """Return a name as code in a cell of a Markdown table."""
    text = name.replace("|", "\\|")
    fence = "``" if "`" in text else "`"
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"


def _escaped(text: str) -> str:
    """Return plain text without the signs that Markdown or HTML would read."""
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>|#" else sign for sign in text)
