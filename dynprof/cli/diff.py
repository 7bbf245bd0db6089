"""``dynprof diff A B``: compare two captures."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from xml.etree import ElementTree as ET

import typer

from dynprof.cli.config_directory import captures_argument, window_to_read
from dynprof.cli.numbers import at_least, percentage
from dynprof.cli.outcome import INVALID, SLOWER, UNREADABLE, fail, say
from dynprof.cli.terminal_tables import (
    UNLIMITED,
    Column,
    console,
    progress_bar,
    shortened,
    table,
    wrapped,
)
from dynprof.errors import CaptureError, describe
from dynprof.journal.journal import printable
from dynprof.runtime.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dynprof.analysis.measures.difference import Growth, StepChange
    from dynprof.analysis.runs.window_difference import Comparison

COLUMNS = (
    Column("name", 0, min_width=22, left=True),
    Column("by", 4, left=True),
    Column("count 1", 7),
    Column("count 2", 6),
    Column("ms 1", 3),
    Column("ms 2", 2),
    Column("change", 1),
    Column("%", 5),
)
"""Columns of the table; 1 is the first capture, 2 the second."""
KERNEL = "kernel"
"""The subject of the analysis whose names have templates."""
LONGEST_NAME = 120
"""Cells of a name, except in JSON: some have thousands. Names that differ later have more."""


class By(StrEnum):
    """What is compared, as in the analysis, which is loaded only when the command runs."""

    part = "part"
    phase = "phase"
    category = "category"
    module = "module"
    operator = "operator"
    shapes = "shapes"
    kernel = "kernel"


class Format(StrEnum):
    """How the comparison is printed."""

    table = "table"
    markdown = "markdown"
    junit = "junit"
    json = "json"


Trace = Annotated[
    Path,
    typer.Argument(
        help="A trace, or a folder, for its newest window; also as a URL.",
        show_default=False,
        callback=captures_argument,
    ),
]


def diff(
    first: Trace,
    second: Trace,
    by: Annotated[
        list[By] | None,
        typer.Option(
            metavar="WHAT",
            help="What to compare: part, phase, category, module, operator, shapes or kernel. "
            "May be repeated. Default: all.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            parser=at_least(1),
            metavar="N",
            help="Maximum number of rows for each WHAT of --by.",
        ),
    ] = 5,
    fail_over: Annotated[
        float | None,
        typer.Option(
            parser=percentage,
            metavar="N%",
            help="Exit with 8 if the median step takes more than N% longer.",
            show_default=False,
        ),
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.table,
) -> None:
    """Compare two captures, windows, ranks or runs: where a step takes more time, or less.

    The parts of a step, such as computing and communication, and the phases of the host come first.
    Then come device time by category, such as GEMM, and by module; operators of the host; device
    time of operators with their shapes, and of kernels. The largest changes of each are shown. For
    windows of several ranks, the means over their common ranks are compared. Exit code 0: compared.
    1: compared, but the numbers are not comparable, or --fail-over cannot decide; the reason is
    printed. 2: there is no capture, or it cannot be read. 8: a step takes longer than --fail-over
    allows.

    Example: dynprof diff prof_config/step_10-14_x prof_config/step_90-94_y
    """
    from dynprof.analysis.runs.window_difference import compare

    try:
        first, second = window_to_read(first), window_to_read(second)
        with progress_bar("reading"):
            compared = compare(first, second)
    except (CaptureError, OSError) as error:
        fail(describe(error), UNREADABLE)
    found = _difference(compared, by, limit, fail_over)
    for why in compared.passed_over:
        say(f"skipped: {why}", err=True)
    _print(found, form)
    if found.not_comparable:
        raise typer.Exit(INVALID)
    if found.verdict and found.verdict.failed:
        raise typer.Exit(SLOWER)


def _difference(
    compared: Comparison, by: Sequence[By] | None, limit: int, fail_over: float | None
) -> Difference:
    from dynprof.analysis.measures.difference import (
        SUBJECTS,
        StepChange,
        growths,
        why_not_by,
        why_not_comparable,
    )

    one, other = compared.one, compared.other
    subjects = [subject for subject in SUBJECTS if not by or By(subject) in by]
    change = StepChange.of(one, other)
    a_step = " or ".join(sorted({one.a_step, other.a_step}))
    reasons = why_not_comparable(one, other)
    if fail_over is not None:
        reasons += _undecided(compared, change)
    verdict = None
    if change and fail_over is not None and not reasons:
        noun = "iteration" if one.kind else "step"
        verdict = _verdict(change, fail_over, noun, (one.recording_ns, other.recording_ns))
    return Difference(
        names=compared.names,
        a_step=a_step,
        whole_ns=(one.whole_ns, other.whole_ns),
        rows=[row for subject in subjects for row in growths(one, other, subject)[:limit]],
        change=change,
        remarks=[
            *compared.remarks,
            *filter(None, (why_not_by(one, other, s, requested=bool(by)) for s in subjects)),
        ],
        not_comparable=reasons,
        verdict=verdict,
    )


def _undecided(compared: Comparison, change: StepChange | None) -> Iterator[str]:
    """Yield the other reasons why ``--fail-over`` cannot decide."""
    from dynprof.analysis.measures.difference import MARKED

    if compared.other_devices:
        yield f"{compared.other_devices}, and a verdict needs the same device"
    if compared.passed_over:
        yield f"{counted(len(compared.passed_over), 'trace')} cannot be read"
    if not (compared.one.recorded[MARKED] or compared.other.recorded[MARKED]):
        yield "neither has marked steps, which --fail-over compares"
    if change is None:
        yield "the first has no step with a duration"


def _verdict(
    change: StepChange, limit: float, noun: str, recording_ns: tuple[float, float]
) -> Verdict:
    """Return whether a step takes too long, in a line that also says how much steps vary."""
    failed, with_article = change.share > limit, f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
    before, after = (f"{median / 1e6:,.3f} ms" for median in change.median_ns)
    longer = f"is {abs(change.share):.1%} {'longer' if change.share >= 0 else 'shorter'}"
    first, second = change.steps
    known = [variation for variation in change.variation if variation is not None]
    if len(known) < 2:
        variation = "the variation of one step is unknown, so record more steps"
    else:
        variation = f"half of the steps are within {known[0]:.1%} and {known[1]:.1%} of it"
        if max(known) > limit:
            variation += ", a variation above the limit, so record more steps"
    text = (
        f"{'failed' if failed else 'passed'}: {with_article} {longer} in 2 ({after}) than in "
        f"1 ({before}), and {100 * limit:.3g}% more is allowed; the median of "
        f"{counted(first, noun)} in 1 and {second:,} in 2; {variation}"
    )
    if any(recording_ns):
        first_own, second_own = (f"{own / 1e6:,.3f} ms" for own in recording_ns)
        text += f"; without the profiler itself ({first_own} and {second_own} on average)"
    return Verdict(failed=failed, limit=limit, text=text)


def _print(found: Difference, form: Format) -> None:
    if form is Format.table:
        _print_table(found)
    else:
        made = {Format.markdown: _as_markdown, Format.junit: _as_junit, Format.json: _as_json}
        say(made[form](found))
    for note in (*found.notes, *([found.verdict.text] if found.verdict else [])):
        say(note, err=True)


def _print_table(found: Difference) -> None:
    shown = console()
    for line in (*found.captures, found.title):
        shown.print(wrapped(line, shown.width, style="italic"))
    if found.rows:
        names = _cut_names(found.rows, templates=shown.width >= UNLIMITED)
        cells = [_cells(row, name) for row, name in zip(found.rows, names, strict=True)]
        shown.print(table(COLUMNS, cells, shown.width))
    else:
        say("nothing changed")


def _cells(row: Growth, name: str) -> list[str]:
    counts = (f"{count:,.0f}" if count >= 1000 else f"{count:.4g}" for count in row.count)
    times = (f"{time / 1e6:,.3f}" for time in row.time_ns)
    return [name, row.by, *counts, *times, f"{row.cost_ns / 1e6:+,.3f}", _percent(row)]


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
        change: Its median and variation; None if unknown.
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


def _as_markdown(found: Difference) -> str:
    """Return a summary for a pull request."""
    lines = [f"**dynprof diff**, {found.title}", ""]
    if found.verdict:
        lines += [_escaped(found.verdict.text), ""]
    if found.rows:
        lines += ["| by | name | ms 1 | ms 2 | change | % |", "|---|---|---:|---:|---:|---:|"]
        lines += [
            f"| {row.by} | {_code(name)} | {_times(row, ' | ')} |"
            for row, name in zip(found.rows, _cut_names(found.rows), strict=True)
        ]
    else:
        lines.append("Nothing changed.")
    notes = [f"- {_escaped(note)}" for note in (*found.captures, *found.notes)]
    return "\n".join([*lines, "", *notes])


def _as_junit(found: Difference) -> str:
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
        for row, name in zip(found.rows, _cut_names(found.rows), strict=True)
    ]
    text = [*found.captures, found.title, "by name: ms in 1, ms in 2, change, %", *rows]
    verdict = [found.verdict.text] if found.verdict else []
    ET.SubElement(case, "system-out").text = "\n".join([*text, *found.notes, *verdict])
    ET.indent(suites)
    written: bytes = ET.tostring(suites, encoding="us-ascii", xml_declaration=True)
    return written.decode()


def _as_json(found: Difference) -> str:
    """Return everything as a JSON object; times are in ns."""
    change, verdict = found.change, found.verdict
    step = {"of": found.a_step, "mean_ns": found.whole_ns}
    if change:
        step |= {
            "median_ns": change.median_ns,
            "steps": change.steps,
            "variation": change.variation,
        }
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
    return between.join((before, after, f"{row.cost_ns / 1e6:+,.3f}", _percent(row)))


def _percent(row: Growth) -> str:
    """Return the change as a share of the time in the first capture; ``new`` if it had none."""
    if row.time_ns[0]:
        return f"{row.cost_ns / row.time_ns[0]:+.1%}"
    return "new" if row.time_ns[1] else ""


def _cut_names(rows: Sequence[Growth], *, templates: bool = False) -> list[str]:
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
