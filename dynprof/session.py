"""One process's profiling: wires watcher, inbox, training thread and exporter together.

Three threads meet here. The watcher's thread puts requests into the inbox; the training thread
looks into it in ``step()`` and is the only one that touches a profiler (``loop.py``); the
exporter's thread reports what it saved.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.clock import local
from dynprof.edits import GONE, Edit, read
from dynprof.ending import Ending
from dynprof.errors import ConfigError
from dynprof.export import Exporter
from dynprof.inbox import Inbox
from dynprof.journal import Journal
from dynprof.layout import free_disk_mb, why_unusable
from dynprof.ledger import Ledger
from dynprof.loop import Loop
from dynprof.plan import Refusal, Standing
from dynprof.request import Cancel, Request, read_request
from dynprof.snapshot import Status, describe_double
from dynprof.version import __version__
from dynprof.wall import Wall
from dynprof.watch import Watcher, WatchMode

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from dynprof.bill import Span
    from dynprof.capture import Manifest
    from dynprof.config import ProfilerConfig
    from dynprof.export import Attempt
    from dynprof.process import Process


class Session:
    """Profiling in this process, from ``init()`` to ``shutdown()``.

    Args:
        process: This process.
        watching: How to watch, and why so.
        exit_wait_s: How long the end waits for a capture that is being saved.
        make_exporter: Makes the exporter.

    Attributes:
        inbox: What ``step()`` looks into.
    """

    def __init__(
        self,
        process: Process,
        *,
        watching: tuple[WatchMode, str] = ("poll", "as asked"),
        exit_wait_s: float = 600.0,
        make_exporter: Callable[[Attempt], Exporter] = Exporter,
    ) -> None:
        self._process, self._clock = process, process.clock
        self._layout, self._rank = process.layout, process.rank
        self._why_watching = watching[1]
        self._ledger = Ledger()
        self._numbers = 0
        self._stopped = False
        self.inbox = Inbox(on_due=self._turn)
        self._journal = Journal(self._layout, self.status, self._guarded_tick)
        self._wall = Wall(self._journal)
        self._exporter = make_exporter(self._wall.attempt)
        self._at_start = read(self._layout.config)
        self._watcher = Watcher(
            self._layout.config,
            self._at_start,
            on_edit=self.take,
            attempt=self._wall.attempt,
            say=self._journal.warning,
            mode=watching[0],
        )
        self._loop = Loop(
            process,
            inbox=self.inbox,
            exporter=self._exporter,
            journal=self._journal,
            wall=self._wall,
            pace_ms=self._pace_before_window,
            on_saved=self._on_saved,
        )
        self._ending = Ending(
            self._loop, self.inbox, self._exporter, self._journal, wait_s=exit_wait_s
        )

    # life

    def begin(self) -> None:
        """Open the log, begin to watch and to export.

        Raises:
            OSError: The log's or the status's directory cannot be made.
        """
        if double := describe_double(self._layout.status, self._layout.pid, self._clock.wall_s()):
            self._journal.warning(double)
        self._journal.start()
        self._exporter.start()
        self._watcher.start()
        offers = self._process.offers()
        self._journal.remember(profilers=offers)
        if isinstance(self._at_start, ConfigError) and self._at_start is not GONE:
            self._journal.warning(f"the config that is there now: {self._at_start}")
        self._journal.info(
            f"dynprof {__version__} watches {self._layout.config} by {self._watcher.mode} "
            f"({self._why_watching}); rank {self._rank.number} of {self._rank.world_size} "
            f"({self._rank.source}), host {self._layout.host}, pid {self._layout.pid}; "
            f"profilers: {'; '.join(map(str, offers))}"
        )

    def end(self, reason: str) -> None:
        """Close what is open, wait for what is being saved, end the threads; once only.

        Raises:
            KeyboardInterrupt: Ctrl-C while it waited; what was being saved is given up.
        """
        if self._stopped:
            return
        try:
            self._watcher.stop()
            self._ending.wind_down(reason)
        finally:
            self._stopped = True
            self._wall.attempt("settling the bill", lambda: self._settle(final=True))
            self._journal.info(f"stopped at step {self.inbox.step}: {reason}")
            self._journal.stop()

    def status(self) -> Status:
        """Return where this process stands."""
        current, waiting = self._loop.open_window, self.inbox.waiting
        state = "idle"
        if self._stopped:
            state = "stopped"
        elif current:
            state = current.window.state
        elif self._exporter.busy:
            state = "saving"
        elif waiting:
            state = "waiting"
        request = current.request if current else waiting
        return Status(
            state=state,
            step=self.inbox.step,
            rank=self._rank.number,
            world_size=self._rank.world_size,
            host=self._layout.host,
            pid=self._layout.pid,
            request=request.number if request else 0,
            progress=current.window.progress if current else None,
            watching=f"{self._watcher.mode} ({self._why_watching})",
            step_ms=self._step_ms(),
            still_s=round(self._ledger.still_s(self._clock.now_s(), self.inbox.step), 1),
            heartbeat=self._clock.wall_s(),
            edits=self._journal.docket.answers,
            **self._journal.remembered,
        )

    # edits, on the watcher's thread

    def take(self, edit: Edit) -> None:
        """Read an edit and put it into the inbox, or say why not."""
        self._loop.forgive()
        self._receive(edit, now=False)

    def _receive(self, edit: Edit, *, now: bool) -> None:
        self._numbers += 1
        digest = hashlib.sha256(edit.raw).hexdigest() if edit.raw else ""
        self._journal.docket.enter(self._numbers, digest, edit.edited_at_s)
        outcome = read_request(edit, self._numbers, self._standing, now=now)
        if isinstance(outcome, Request):
            self._arm(outcome)
        elif isinstance(outcome, Cancel):
            self._cancel(outcome.number)
        elif isinstance(outcome, Refusal):
            texts = list(map(str, outcome.problems))
            if outcome.asked:
                self._journal.refusal(self._numbers, texts)
            else:
                self._journal.tell(self._numbers, "not asked", f"nothing to do; {texts[0]}")

    def _standing(self, config: ProfilerConfig) -> Standing:
        folder = self._layout.capture_dir(config.prof_dir)
        return Standing(
            step=self.inbox.step,
            rank=self._rank.number,
            offers=self._process.offers(),
            free_disk_mb=free_disk_mb(folder),
            prof_dir_problem=why_unusable(folder),
        )

    def _look_at_disk(self, config: ProfilerConfig) -> None:
        self._loop.free_disk_mb = free_disk_mb(self._layout.capture_dir(config.prof_dir))

    def _arm(self, request: Request) -> None:
        start = request.plan.start_step
        when = f"at step {start}" if start else "at the next step"
        text = f"accepted, saved {local(request.edited_at_s)}; opens {when}"
        text += f", {request.config.active} steps with {request.plan.backend} "
        text += f"({', '.join(request.plan.activities)})"
        remarks = [str(remark) for remark in request.remarks]
        self._journal.tell(request.number, "waiting", "\n".join([text, *remarks]))
        self._journal.remember(problems=(), remarks=tuple(remarks))
        self._look_at_disk(request.config)
        if replaced := self.inbox.put(request):
            text = f"superseded by request {request.number}"
            self._journal.tell(replaced.number, "superseded", text)

    def _cancel(self, number: int) -> None:
        waiting, current = self.inbox.disarm(), self._loop.busy
        if waiting:
            self._journal.tell(waiting.number, "disarmed", f"disarmed by request {number}")
        if current:
            self.inbox.order_close(f"cancelled by request {number}")
        done = [text for text, found in (("disarms", waiting), ("closes", current)) if found]
        what = f"{' and '.join(done)} what there is" if done else "but nothing is open or waiting"
        self._journal.tell(number, "cancel", f"cancel, {what}")
        self._journal.remember(problems=(), remarks=())

    # calls of the training script

    def _turn(self) -> None:
        if self.inbox.answer():
            self._ledger.step_ends(self._clock.now_s(), self.inbox.step)
        self._loop.turn()

    def start(self, config_path: str | os.PathLike[str] | None) -> None:
        """Open a window now, from the watched config or another file."""
        self._wall.attempt("start()", lambda: self._start(config_path))

    def _start(self, config_path: str | os.PathLike[str] | None) -> None:
        if self._loop.open_window:
            self._journal.warning("start(): a window is open already; nothing changes")
            return
        reading = read(self._layout.config if config_path is None else Path(config_path))
        problems = reading.problems if isinstance(reading, ConfigError) else ()
        raw = b"" if isinstance(reading, ConfigError) else reading.raw
        self._receive(Edit(raw, self._clock.wall_s(), problems), now=True)
        self._loop.turn()

    def leave_child(self) -> None:
        """Stop recording in a child that was just forked, saying nothing: locks may be held."""
        if current := self._loop.open_window:
            current.window.leave_child()

    def stop(self) -> None:
        """Close the open window early; from another thread, at the next step."""
        if self._loop.owns_window():
            self._loop.close_now("stopped by the script")
        elif self._loop.open_window:
            self.inbox.order_close("stopped by the script")

    def set_step(self, step: int) -> None:
        """Set the number of the step that is running; an open window closes first."""
        text = f"the script set the step from {self.inbox.step} to {step}"
        self._loop.close_now(text)
        self._journal.info(text)
        self._ledger.counter_set()
        self.inbox.step = step

    # news, on the exporter's and the journal's threads

    def _on_saved(self, span: Span, path: Path, manifest: Manifest) -> None:
        self._wall.attempt("settling the bill", lambda: self._settle(final=True))
        self._ledger.window_saved(path, manifest, span, self._clock.now_s(), self.inbox.step)
        self.inbox.knock()
        shown = _relative(path, self._layout.root)
        folder = path.parent.parent
        self._journal.remember(last_capture=shown)
        number, trace = manifest.request.number, manifest.trace
        if trace:
            text = f"saved {_relative(folder / trace, self._layout.root)} "
            text += f"({manifest.trace_bytes / 1e3:,.0f} kB) in {manifest.cost.save_ms:.0f} ms"
            self._journal.tell(number, "saved", "\n".join([text, *manifest.lost]), capture=shown)
        else:
            text = f"no trace; {manifest.reason}; see {shown}"
            self._journal.tell(number, "failed", text, capture=shown)

    def _guarded_tick(self) -> None:
        self._wall.attempt("a tick", self._tick)

    def _tick(self) -> None:
        self._ledger.sample(self._clock.now_s(), self.inbox.step)
        self._wall.attempt("settling the bill", lambda: self._settle(final=False))
        waiting = self.inbox.waiting
        if waiting:
            self._wall.attempt("looking at the disk", lambda: self._look_at_disk(waiting.config))

    def _settle(self, *, final: bool) -> None:
        self._ledger.settle(self._clock.now_s(), self.inbox.step, final=final)

    def _pace_before_window(self) -> float | None:
        return self._ledger.window_opens(self._clock.now_s(), self.inbox.step)

    def _step_ms(self) -> float | None:
        return self._ledger.step_ms(self._clock.now_s(), self.inbox.step)


def _relative(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
