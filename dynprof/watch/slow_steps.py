"""The watch: it follows the config, and writes a record of each slow step."""

from __future__ import annotations

import contextlib
import html
import json
import math
import os
import time
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynprof.config import WatchConfig, parse_config
from dynprof.errors import ConfigError
from dynprof.journal.status import SlowStepStatus, WatchStatus
from dynprof.runtime.clock import iso
from dynprof.runtime.plural import counted
from dynprof.runtime.safe_write import write_atomic
from dynprof.runtime.threads import own_thread, threads_of_others
from dynprof.watch.sampler import Sampler
from dynprof.watch.slow_step_analysis import NO_SAMPLE, UNKNOWN, SlowStepAnalysis, Snapshot

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from dynprof.config import ProfilerConfig
    from dynprof.journal.journal import Journal
    from dynprof.requests.inbox import Inbox
    from dynprof.requests.request import Edit
    from dynprof.runtime.error_boundary import ErrorBoundary
    from dynprof.runtime.layout import Layout
    from dynprof.runtime.rank import Rank
    from dynprof.watch.sampler import SlowStep
    from dynprof.watch.slow_step_analysis import Node

MAX_RECORDS = 500
"""Records that a process writes until the watch is changed; one has about 100 kB."""
MAX_RECENT = 10
"""Slow steps in the status: two a second, in the five seconds by which ranks write it apart."""
HOUR_S = 3600.0
RESERVE = 5
"""Records of an hour beyond the limit, for steps that take twice as long as all recorded ones."""
BURST_S, RECORDS_SHARE = 0.05, 0.3
"""CPU time of records, in seconds, that is used at once, and the share of the budget that
covers it later. With 200 threads a record takes 20 ms."""
_REPORT = Path(__file__).parents[1] / "analysis" / "report"
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}
body {display: block}
main {max-width: 75rem; margin: auto}
th, td {padding: 0 1em 0 0; text-align: left}</style>
</head>
<body>
<main>
  <header id="overview"><p>{where}</p><h1>{title}</h1><p id="verdict">{verdict}</p><p>{advice}</p></header>
  <section><h2>Further facts</h2><ul>{facts}</ul></section>
  <section><h2>Phases</h2><table><tr><th>phase</th><th>this step</th><th>usual</th></tr>{phases}</table></section>
  <section id="flame">
    <h2>Stacks of this step against usual steps</h2>
    <p class="hint">{hint}</p>
    <div class="tools">
      <select aria-label="Thread"></select>
      <input type="search" placeholder="Search frames" aria-label="Search the flame graph">
      <button type="button" class="reset" hidden>Show all</button>
      <output></output>
    </div>
    <div class="graph"></div>
    <p class="told" aria-live="polite"></p>
  </section>
</main>
<script>{scripts}
const threads = {data};
const section = document.getElementById("flame");
const choice = section.querySelector("select");
threads.forEach((one, place) => choice.append(new Option(one.thread, place)));
const graph = new FlameGraph(section, threads[0].flame);
choice.addEventListener("change", () => graph.load(threads[choice.value].flame));
</script>
</body>
</html>
"""  # noqa: E501 - lines of HTML


class SlowSteps:
    """The watch for slow steps in this process.

    Args:
        layout: Returns the current paths of this rank.
        rank: Returns the rank.
        inbox: Counts the steps.
        journal: The log.
        boundary: Keeps failures from other threads.
        at_start: The config when watching began; empty if it could not be read.
        is_busy: Returns whether dynprof itself records or saves.
        request: Requests a window by a config, and by what triggered that; returns why not, empty
            if it does.
    """

    def __init__(
        self,
        layout: Callable[[], Layout],
        rank: Callable[[], Rank],
        inbox: Inbox,
        journal: Journal,
        boundary: ErrorBoundary,
        *,
        at_start: bytes,
        is_busy: Callable[[], bool],
        request: Callable[[bytes, str], str],
    ) -> None:
        self._layout, self._rank, self._inbox = layout, rank, inbox
        self._journal, self._boundary = journal, boundary
        self._is_busy, self._request = is_busy, request
        self._at_start = at_start
        self._before: ProfilerConfig | None = None
        self._sampler: Sampler | None = None
        self._settings = WatchConfig()
        self._writer: threading.Thread | None = None
        self._written: deque[_Written] = deque(maxlen=1000)
        self._debt_s, self._debt_at_s = 0.0, 0.0  # CPU time of records, and since when
        self._slow = self._records = self._unexplained = 0
        self._uncaused = Counter[str]()  # those of no logged line yet, by the reason
        self._uncaused_logged_s = -math.inf
        self._recent: tuple[SlowStepStatus, ...] = ()  # newest first
        self._is_limited = False

    def begin(self) -> None:
        """Follow the config as it is at the start, if it is valid."""
        with contextlib.suppress(ConfigError):
            self._before = parse_config(self._at_start).config
            self._apply(self._before.watch)

    def take(self, edit: Edit) -> str:
        """Follow a save; return what the watch does now, if nothing else was changed.

        Returns:
            What the answer to the save is; empty if it requests a window or cancels one.
        """
        if edit.problems or edit.is_own:
            return ""
        try:
            config = parse_config(edit.raw).config
        except ConfigError:
            return ""  # it is refused, and the watch stays as it is
        before, self._before = self._before, config
        if config.watch == self._settings:
            return ""
        text = self._apply(config.watch, is_left_out="watch" not in config.model_fields_set)
        is_all = before is not None and before.requested_json() == config.requested_json()
        return text if is_all else ""

    def _apply(self, settings: WatchConfig, *, is_left_out: bool = False) -> str:
        """Switch the watch on or off, or over to other settings; return what it does now."""
        was_on, self._settings = self._settings.is_on, settings
        self.stop()
        if not settings.is_on:
            text = "the watch for slow steps is off"
            if was_on and is_left_out:
                text += ": the saved config has no watch"
                self._journal.warning(f"{text}; dynprof arm --watch switches it on")
            elif was_on:
                self._journal.info(text)
            return text
        self._written.clear()
        self._slow = self._records = self._unexplained = 0
        self._recent, self._is_limited, self._debt_s = (), False, 0.0
        self._sampler = Sampler(
            self._inbox,
            settings,
            self._boundary,
            is_busy=self._is_busy,
            on_slow=self._on_slow,
            on_raised=self._on_raised,
        )
        self._sampler.start()
        text = f"watches for steps that take {_limit_in_words(settings)}"
        self._journal.info(f"{text}; records go to {self._layout().slow_step(0, 0).parent}")
        return text

    def stop(self) -> None:
        """Switch the watch off; a record that is being written is completed."""
        sampler, self._sampler = self._sampler, None
        if sampler:
            self._inbox.time_steps(None)
            sampler.stop()
        for one in list(self._written):
            self._log_alike(one)
        self._log_uncaused()

    def abandon(self) -> None:
        """Remove what is left of the watch in a forked child; takes no lock."""
        if self._sampler:
            self._sampler.stop()

    def end(self, timeout_s: float) -> None:
        """Switch the watch off, and wait for a record that is being written."""
        self.stop()
        if self._writer and self._writer.is_alive():
            self._writer.join(timeout_s)

    def tick(self) -> None:
        """Log the slow steps whose line had to wait; called once a second."""
        for one in list(self._written):
            if time.monotonic() - one.logged_s >= ALIKE_S:
                self._log_alike(one)
        if time.monotonic() - self._uncaused_logged_s >= ALIKE_S:
            self._log_uncaused()

    def status(self) -> WatchStatus | None:
        """Return the state of the watch; None while it is off."""
        if (sampler := self._sampler) is None:
            return None
        return WatchStatus(
            limit_ms=round(sampler.limit_ns / 1e6, 3),
            interval_ms=round(sampler.interval_s * 1e3, 1),
            share_percent=round(sampler.share_percent, 3),
            slow_steps=self._slow,
            records=self._records,
            last=self._recent[0] if self._recent else None,
            budget_percent=self._settings.budget_percent,
            is_limit_raised=sampler.is_limit_raised,
            unexplained=self._unexplained,
            earlier=self._recent[1:],
        )

    # on the sampler's thread

    def _on_raised(self, sampler: Sampler) -> None:
        asked_ms = (self._settings.slower_than or 0.0) * sampler.usual_ns / 1e6
        limit = f"the limit for slow steps is {sampler.limit_ns / 1e6:,.0f} ms now"
        alone = f"watch.slower_than alone gives {asked_ms:,.0f} ms"
        self._journal.info(f"{limit}, because step times vary; {alone}")

    def _on_slow(self, step: SlowStep) -> None:
        self._slow += 1
        sampler = self._sampler
        if sampler is None or not self._may_write(step):
            return
        known = Snapshot(
            ring=list(sampler.ring),
            gaps=list(sampler.gaps),
            counters=list(sampler.counters),
            gpus=list(sampler.gpus),
            collections=list(sampler.collections.found),
            codes=sampler.codes,
            names=sampler.names | {one.ident: one.name for one in threads_of_others() if one.ident},
            excluded=list(sampler.excluded),
            cpus=len(os.sched_getaffinity(0)),
        )
        ended_s = time.time() - (time.perf_counter_ns() - step.ended_ns) / 1e9
        write = self._write, sampler, step, known, ended_s, _why_no_sample(sampler)
        self._writer = own_thread(self._write_guarded, "dynprof-slow-step", *write)
        self._writer.start()
        sampler.leave_out(self._writer)

    def _may_write(self, step: SlowStep) -> bool:
        """Return whether another record may be written; if not, log the reason."""
        if self._writer and self._writer.is_alive():
            self._count_uncaused("another record was being written")
            return False
        recent, most, limit = self._of_this_hour(), self._settings.max_per_hour, ""
        is_longest = all(step.ended_ns - step.began_ns >= 2 * one.took_ns for one in recent)
        if len(recent) < most and self._records < MAX_RECORDS:
            self._is_limited = False
        if self._records >= MAX_RECORDS:
            limit = f"{MAX_RECORDS} records are written; change watch to write more"
        elif len(recent) >= most + (RESERVE if is_longest else 0):
            limit = f"watch.max_per_hour is {most}"
            if len(recent) < most + RESERVE:
                limit += "; one that takes twice as long as those recorded is still recorded"
        if limit and not self._is_limited:
            text = "further slow steps are counted but not recorded for now"
            self._journal.warning(f"{text}: {limit}")
            self._is_limited = True
        is_covered = is_longest or self._owed_s() < BURST_S
        if not (limit or is_covered):
            self._count_uncaused("watch.budget_percent allowed no further record")
        return not limit and is_covered

    def _of_this_hour(self) -> list[_Written]:
        since_s = time.monotonic() - HOUR_S
        return [one for one in self._written if one.at_s > since_s]

    def _owed_s(self) -> float:
        """Return the CPU time of records that the budget has not covered yet."""
        now_s = time.monotonic()
        share = RECORDS_SHARE * self._settings.budget_percent / 100
        covered_s = (now_s - self._debt_at_s) * share
        self._debt_s, self._debt_at_s = max(0.0, self._debt_s - covered_s), now_s
        return self._debt_s

    # on a thread for each record

    def _write_guarded(self, write: Callable[..., None], sampler: Sampler, *args: Any) -> None:
        self._boundary.attempt("writing the record of a slow step", lambda: write(*args))
        spent_s = time.thread_time()
        self._debt_s = self._owed_s() + spent_s
        sampler.spent_s += spent_s

    def _write(self, step: SlowStep, known: Snapshot, ended_s: float, why_no_sample: str) -> None:
        examined = SlowStepAnalysis(step, known, ranks=self._rank().world_size)
        if examined.cause == UNKNOWN:
            because = f", because {why_no_sample}" if examined.text == NO_SAMPLE else ""
            self._count_uncaused(f"{examined.text}{because}")
            return
        if self._is_known(step, examined, ended_s):
            return
        record = self._record(step, examined, ended_s)
        text = f"{record['title']}; {examined.text}"
        layout = self._layout()
        stem = layout.slow_step(step.number, ended_s)
        layout.make_dir(stem.parent)
        page = stem.with_name(f"{stem.name}.html")
        write_atomic(stem.with_name(f"{stem.name}.json"), json.dumps(record, separators=(",", ":")))
        write_atomic(page, _page(record))
        self._records += 1
        now_s = time.monotonic()
        written = _Written(
            now_s, step.ended_ns - step.began_ns, step.number, examined.verdict,
            str(page.relative_to(layout.root)), examined.additional_samples, logged_s=now_s,
        )  # fmt: skip
        self._written.append(written)
        self._keep(_status_of(step, examined, written.page, ended_s))
        self._journal.warning(f"{text} ({written.page})")
        self._journal.events.report("slow", f"{text} ({written.page})", step=step.number)
        if then := self._settings.then:
            asked = {**(self._before.requested_json() if self._before else {})}
            for name in ("start_step", "cancel", "every", "keep"):
                asked.pop(name, None)
            raw = json.dumps({**asked, **then.model_dump()}).encode()
            why = self._request(raw, f"slow step {step.number} of rank {self._rank().number}")
            text = f"no window is requested: {why}" if why else f"{then.active} steps are requested"
            self._journal.info(f"after slow step {step.number}, {text}")

    def _is_known(self, step: SlowStep, examined: SlowStepAnalysis, ended_s: float) -> bool:
        """Count a step in the record of this hour with the same verdict; return whether one has.

        A step that takes twice as long has a record of its own.
        """
        took_ns, verdict = step.ended_ns - step.began_ns, examined.verdict
        alike = [one for one in self._of_this_hour() if one.verdict == verdict]
        if not alike or took_ns >= 2 * max(one.took_ns for one in alike):
            return False
        first = alike[-1]
        first.alike += 1
        first.samples += examined.additional_samples
        self._keep(_status_of(step, examined, first.page, ended_s))
        first.waiting = f"{_title(step, examined)}; {examined.text}"
        if time.monotonic() - first.logged_s >= ALIKE_S:
            self._log_alike(first)
        return True

    def _keep(self, slow: SlowStepStatus) -> None:
        self._recent = (slow, *self._recent)[:MAX_RECENT]

    def _log_alike(self, first: _Written) -> None:
        text, first.waiting = first.waiting, ""
        if text:
            first.logged_s = time.monotonic()
            more = f"{counted(first.alike, 'slow step')} like step {first.number}"
            shown = f"{counted(first.samples, 'sample')} in all"
            self._journal.info(f"{text}; {more}, {shown} ({first.page})")

    def _count_uncaused(self, why: str) -> None:
        self._unexplained += 1
        self._uncaused[why] += 1

    def _log_uncaused(self) -> None:
        """Log the slow steps without a record, with the reasons; called every ten seconds."""
        if found := self._uncaused:
            self._uncaused, self._uncaused_logged_s = Counter(), time.monotonic()
            reasons = "; ".join(f"for {number}, {why}" for why, number in found.most_common())
            if len(found) == 1:
                reasons = next(iter(found))
            total = counted(found.total(), "slow step has", "slow steps have")
            self._journal.warning(f"{total} no record and no known cause: {reasons}")

    def _record(self, step: SlowStep, examined: SlowStepAnalysis, ended_s: float) -> dict[str, Any]:
        layout, rank = self._layout(), self._rank()
        inside, usual = examined.counts
        return {
            "title": _title(step, examined),
            "verdict": examined.text,
            "advice": _ADVICE.get(examined.cause, ""),
            "cause": examined.cause,
            "place": examined.place,
            "step": step.number,
            "rank": rank.number,
            "world_size": rank.world_size,
            "role": layout.role,
            "host": layout.host,
            "pid": layout.pid,
            "config_directory": str(layout.root),
            "ended_at": iso(ended_s),
            "ms": round(examined.took_ms, 3),
            "usual_ms": round(examined.usual_ms, 3),
            "waited_ms": round(examined.waited_ms, 3),
            "worked_ms": round(examined.took_ms - examined.waited_ms, 3),
            "waited_in": examined.waited_in,
            "facts": examined.evidence(),
            "phases": {
                name: [round(ms, 3) for ms in times] for name, times in examined.phases().items()
            },
            "samples": inside,
            "unseen_ms": round(examined.unseen_ms, 3),
            "usual_samples": usual,
            "threads": [
                {
                    "thread": examined.name_of(thread),
                    "is_training": thread == step.thread,
                    "flame": _flame(node),
                }
                for thread, node in examined.stacks().items()
            ],
        }


@dataclass
class _Written:
    """A record.

    Attributes:
        at_s: When it was written, by the monotonic clock.
        took_ns: How long its step took.
        number: The step.
        verdict: Its cause and place.
        page: Its page, relative to the config's directory.
        samples: The samples that show its additional time, and that of those alike.
        alike: Later steps of the same verdict, which have no record.
        logged_s: When the log last had a line about one, by the monotonic clock.
        waiting: The text about the newest of them, while its line waits; else empty.
    """

    at_s: float
    took_ns: int
    number: int
    verdict: tuple[str, str, int]
    page: str
    samples: int = 0
    alike: int = 0
    logged_s: float = 0.0
    waiting: str = ""


ALIKE_S = 10.0
"""Least interval of the log lines about slow steps of one verdict: several a second fill a log."""


def _title(step: SlowStep, examined: SlowStepAnalysis) -> str:
    title = f"step {step.number} took {examined.took_ms:,.0f} ms"
    return f"{title}, {examined.usual_ms:,.0f} ms is usual" if step.usual_ns else title


def _why_no_sample(sampler: Sampler) -> str:
    if sampler.is_over_budget:
        return "watch.budget_percent allows no more"
    return "the sampler did not get a CPU or the GIL in time"


def _status_of(
    step: SlowStep, examined: SlowStepAnalysis, page: str, ended_s: float
) -> SlowStepStatus:
    times_ms = examined.took_ms, examined.usual_ms, examined.waited_ms
    return SlowStepStatus(step.number, *times_ms, examined.text, page, ended_s)


def _limit_in_words(settings: WatchConfig) -> str:
    limits = []
    if settings.slower_than is not None:
        text = f"more than {settings.slower_than:g} times the usual time"
        limits.append(f"{text}, and by more than step times usually vary")
    if settings.longer_than_ms is not None:
        limits.append(f"more than {settings.longer_than_ms:g} ms")
    return " or ".join(limits)


def _flame(root: Node) -> dict[str, Any]:
    """Return a tree of calls in the format of the report's flame graph; times in us."""
    names: dict[str, int] = {}
    found: dict[str, list[int]] = {"name": [], "parent": [], "total": [], "usual": []}
    waiting = [(one, -1) for one in root.inner.values()]
    for node, parent in waiting:  # the list grows during the loop
        place = len(found["name"])
        found["name"].append(names.setdefault(node.frame.text, len(names)))
        found["parent"].append(parent)
        found["total"].append(round(node.slow_ms * 1e3))
        found["usual"].append(round(node.usual_ms * 1e3))
        waiting += [(one, place) for one in node.inner.values()]
    return {"names": list(names), **found, "all": round(root.slow_ms * 1e3)}


def _page(record: dict[str, Any]) -> str:
    """Return a page about a slow step, which never uses the network."""
    data = json.dumps(record["threads"], separators=(",", ":")).replace("<", "\\u003c")
    parts = {name: (_REPORT / name).read_text(encoding="utf-8") for name in _PARTS}
    rows = (
        f"<tr><td>{html.escape(name)}</td><td>{_time(slow)}</td><td>{_time(usual)}</td></tr>"
        for name, (slow, usual) in record["phases"].items()
    )
    rank = f"Rank {record['rank']} of {record['world_size']}"
    role = f", role {record['role']}" if record["role"] else ""
    process = f"process {record['pid']} on {record['host']}"
    where = f"{rank}{role}: {process}, with {record['config_directory']}"
    unseen = f"; no sample covers {record['unseen_ms']:,.0f} ms of it"
    hint = (
        f"Width: time in this step, by {record['samples']} samples"
        f"{unseen if record['unseen_ms'] >= 1 else ''}. Red: longer than in usual "
        f"steps, by {record['usual_samples']} samples. Blue: shorter."
    )
    values = {
        "title": html.escape(record["title"]),
        "where": html.escape(f"{where}; the step ended at {record['ended_at']}"),
        "verdict": html.escape(record["verdict"]),
        "advice": html.escape(record["advice"]),
        "facts": "".join(f"<li>{html.escape(fact)}</li>" for fact in record["facts"]),
        "phases": "".join(rows),
        "hint": html.escape(hint),
        "style": parts["page.css"],
        "scripts": parts["bars.js"] + parts["flame.js"],
        "data": data,
    }
    page = _PAGE
    for name, value in values.items():
        page = page.replace(f"{{{name}}}", value)
    return page


def _time(ms: float) -> str:
    return f"{ms:,.1f} ms" if ms else "in no sample"


_ADVICE = {
    "garbage collection": "Call gc.freeze() after the start, or collect at a checkpoint only.",
    "throttled": "Raise the CPU limit of the container, or start fewer workers and threads.",
    "no CPU": "Start fewer workers and threads, or keep other jobs off these CPUs.",
    "stopped": "Look for a debugger, SIGSTOP, or a machine that was paused.",
    "waiting": "Look at the record of the other ranks for this step: one of them worked.",
    "code": "Look at this line: move it out of the loop, to another thread, or do it less often.",
    "lock": "Look for a C extension that holds the GIL during long calls.",
    "spread": "Look at the clocks of the devices, page faults, and what else the machine ran.",
}
"""What to do, by the cause."""
_PARTS = ("page.css", "bars.js", "flame.js")
"""Files of the report's page that this one shares."""
