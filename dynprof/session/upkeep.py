"""What a session does once a second and once a start, on threads of its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dynprof.delivery.left_behind import left_behind
from dynprof.files.destination import destination
from dynprof.files.layout import free_disk_mb
from dynprof.files.leftovers import OLD_S, remove_leftovers
from dynprof.files.scratch_dirs import workshops
from dynprof.journal.status_file import remove_stale
from dynprof.marks.sinks import SINKS
from dynprof.process.threads import own_thread
from dynprof.session.standstill import Standstill

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from dynprof.captures.analysis_start import Analyses
    from dynprof.journal.journal import Journal
    from dynprof.requests.inbox import Inbox
    from dynprof.steps.step_sources import StepSources
    from dynprof.wall import Wall
    from dynprof.windows.cost_account import CostAccount
    from dynprof.windows.this_process import ThisProcess


class Upkeep:
    """Samples, settles and tidies; each of it may fail without the others.

    Args:
        process: This process.
        inbox: What waits.
        journal: The log.
        wall: Keeps failures from the others.
        costs: The step times of the job.
        analyses: Those that were started.
        steps: Where they come from.
    """

    def __init__(
        self,
        process: ThisProcess,
        inbox: Inbox,
        journal: Journal,
        wall: Wall,
        costs: CostAccount,
        analyses: Analyses,
        steps: StepSources,
    ) -> None:
        self._process, self._inbox, self._costs = process, inbox, costs
        self._journal, self._wall, self._analyses = journal, wall, analyses
        self._steps = steps
        self._standstill = Standstill(process.layout.root, inbox, costs, journal, process.clock)
        self._told: set[Path] = set()  # of captures that were left behind
        self._marks_torch = False

    def tick(self) -> None:
        """Do what is due once a second, on the journal's thread."""
        self._wall.attempt("a tick", self._tick)

    def _tick(self) -> None:
        learn_rank(self._process, self._journal)
        self._wall.attempt("where steps come from", self._steps.look)
        self._wall.attempt("looking for torch", self._look_for_torch)
        self._wall.attempt("analysis", self._analyses.look)
        self._costs.sample()
        self._wall.attempt("looking for a standstill", self._standstill.look)
        self._wall.attempt("counting the cost", lambda: self._costs.settle(final=False))
        self._wall.attempt("looking at the disk", self._look_at_disk)

    def _look_for_torch(self) -> None:
        """Have the plugin, if there is one, mark a torch that was imported since."""
        if SINKS.before_plug and not self._marks_torch:
            self._marks_torch = SINKS.before_plug()

    def _look_at_disk(self) -> None:
        if waiting := self._inbox.waiting:
            config = waiting.config
            place = destination(
                self._process.layout, config.prof_dir, config.storage.scratch_dir
            ).workshop
            self._inbox.free_disk_mb = free_disk_mb(place)

    def clear_up(self, ended: threading.Event) -> None:
        """Remove what killed processes left, now and once more when their captures are old.

        Args:
            ended: Set when the session ends.
        """

        def clear_up() -> None:
            self._clear_up_once()
            if not ended.wait(OLD_S):
                self._clear_up_once()

        if os.environ.get("LOCAL_RANK", "0") == "0":  # one for each machine
            own_thread(clear_up, "dynprof-clear").start()

    def _clear_up_once(self) -> None:
        layout = self._process.layout
        removed: list[Path] = []
        places = (layout.root, *layout.prof_dirs, *workshops(layout.root))
        self._wall.attempt(
            "clearing up", lambda: removed.extend(remove_leftovers(places, layout.host))
        )
        wall_s = self._process.clock.wall_s()
        self._wall.attempt("clearing up", lambda: remove_stale(layout, wall_s))
        for path in removed:
            self._journal.info(f"removed {path}, which a killed process left unfinished")
        self._wall.attempt("naming what was left behind", self._name_left)

    def _name_left(self) -> None:
        """Say which captures nobody sends any more, and what does, once.

        A person has to type it: this job need not be allowed to send the files of another.
        """
        layout = self._process.layout
        left = left_behind(layout.root, layout.prof_dirs)
        news = [one for one in left if one.path not in self._told]
        self._told |= {one.path for one in news}
        if news:  # a job of many ranks may have left thousands
            text = f"the capture in {news[0].folder} was never sent on; to send it, type"
            more = f"; so it is with {len(news) - 1:,} more, which dynprof status names"
            self._journal.warning(f"{text} {news[0].command}{more if len(news) > 1 else ''}")


def learn_rank(process: ThisProcess, journal: Journal) -> None:
    """Ask which rank this is while nobody has said, and go by it from then on."""
    if process.learn_rank():
        journal.move(process.layout)
        rank = process.rank
        text = f"this is rank {rank.number} of {rank.world_size} ({rank.source})"
        journal.info(f"{text}, as has only now become known")
