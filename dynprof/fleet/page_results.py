"""Reports and comparisons that the page offers, made by dynprof's commands in a private folder."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool

from dynprof.errors import reason
from dynprof.fleet.commands import run_command
from dynprof.runtime.destination import is_url

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

LIMIT_S = 600.0
"""Seconds that a command may take; a trace of hundreds of MB takes a minute."""
AT_ONCE = 2
"""Commands that run at once; each reads a trace with all of its CPUs.

As many more read from stores, so that a store that does not answer delays no other result.
"""
MAX_KEPT, MAX_WAITING = 64, 16
"""Results that are kept, and that are waited for; a report has less than a megabyte."""

Key = tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """What a command has made.

    Attributes:
        id: A name that cannot be guessed.
        code: Its exit code; None if the time was up.
        output: Its standard output, without a path.
        messages: Its standard error, likewise.
        page: The HTML page that it has written; None if it has none.
    """

    id: str
    code: int | None
    output: str
    messages: str
    page: Path | None


class Results:
    """Makes results on demand, each once; the folder is removed at the end.

    Those of a URL are made each time: the store may have another capture by then.
    """

    def __init__(self) -> None:
        self._folder = _private_folder()
        self._made: OrderedDict[Key, asyncio.Task[Result]] = OrderedDict()
        self._here, self._stored = _Limit(), _Limit()

    async def make(self, key: Key, arguments: Sequence[str], page: str = "") -> Result | None:
        """Return a result; None if too many others are being made.

        Args:
            key: What it is about, and a version of that.
            arguments: The command that makes it.
            page: The name of the page that it writes; empty for none.
        """
        task, limit = self._made.get(key), self._here
        if any(is_url(one) for one in arguments):
            limit = self._stored
        if task is None or _is_lost(task):
            if len(limit.tasks) >= MAX_WAITING:
                return None
            task = self._made[key] = limit.start(self._make(arguments, page, limit.turns))
        self._made.move_to_end(key)
        result = await asyncio.shield(task)
        may_change = result.code != 0 or limit is self._stored
        if may_change and self._made.get(key) is task:
            del self._made[key]
            self._made[(result.id,)] = task
        self._drop_old()
        return result

    def page(self, identity: str) -> Path | None:
        """Return the page of a result; None if there is none, or no more."""
        for task in self._made.values():
            if task.done() and task.result().id == identity and not _is_lost(task):
                return task.result().page
        return None

    def close(self) -> None:
        """Remove all results, and wait for none."""
        for task in self._made.values():
            task.cancel()
        self._folder.cleanup()

    async def _make(self, arguments: Sequence[str], page: str, turns: asyncio.Semaphore) -> Result:
        identity = secrets.token_urlsafe(16)
        first, *others = arguments
        try:
            async with turns:
                folder = self._own_folder()
                place = folder / f"{identity}-{page}"
                command = [first, *([f"--output={place}"] if page else []), *others]
                urls = [one for one in others if is_url(one)]
                # An ended command removes nothing: its temporary files are in the folder.
                with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as scratch:
                    answer = await run_in_threadpool(
                        run_command, command, timeout_s=LIMIT_S, urls=urls, scratch=Path(scratch)
                    )
        except OSError as error:
            return Result(identity, None, "", f"{first} cannot be started: {reason(error)}", None)
        made = place if page and place.is_file() else None
        told, messages = (_without(str(place), one) for one in (answer.output, answer.messages))
        return Result(identity, answer.code, told, messages, made)

    def _own_folder(self) -> Path:
        """Return the private folder; a new one if it was removed, as some machines empty /tmp."""
        folder = Path(self._folder.name)
        if folder.exists() and folder.stat(follow_symlinks=False).st_uid == os.geteuid():
            return folder
        self._folder.cleanup()
        self._folder = _private_folder()
        return Path(self._folder.name)

    def _drop_old(self) -> None:
        for key, task in list(self._made.items())[: max(0, len(self._made) - MAX_KEPT)]:
            if task.done():
                del self._made[key]
                if (page := task.result().page) is not None:
                    page.unlink(missing_ok=True)


class _Limit:
    """Limits the commands that run at once, and knows those that run or wait."""

    def __init__(self) -> None:
        self.turns, self.tasks = asyncio.Semaphore(AT_ONCE), set[asyncio.Task[Result]]()

    def start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Start to wait for a turn, and to make a result."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task


def _private_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="dynprof-page-", ignore_cleanup_errors=True)


def _is_lost(task: asyncio.Task[Result]) -> bool:
    """Return whether the page of a result was removed."""
    page = task.result().page if task.done() else None
    return page is not None and not page.is_file()


def _without(line: str, text: str) -> str:
    """Return a text without the line that names a file of this process."""
    return "".join(one for one in text.splitlines(keepends=True) if one.strip() != line)
