"""Results that the page makes: which are made again, and which wait for which."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dynprof.fleet import page_results
from dynprof.fleet.commands import Answer
from dynprof.fleet.page_results import MAX_WAITING, Result, Results

if TYPE_CHECKING:
    from collections.abc import Sequence

URL = "s3://bucket/run"


class Commands:
    """Stands for dynprof's commands: each writes its page; those of a URL wait for the store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran, self.store_answers = list[str](), threading.Event()
        monkeypatch.setattr(page_results, "run_command", self)

    def __call__(
        self, arguments: Sequence[str], *, urls: Sequence[str], scratch: Path, **_: object
    ) -> Answer:
        """Run a command."""
        self.ran.append(arguments[-1])
        (scratch / "download").touch()
        if urls:
            self.store_answers.wait()
        Path(arguments[1].removeprefix("--output=")).write_text("page")
        return Answer(0, "", "")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Replace dynprof's commands."""
    return Commands(monkeypatch)


async def report(results: Results, place: str) -> Result:
    """Return the report of a place."""
    made = await results.make(("report", place), ["report", "--", place], "report.html")
    assert made is not None
    return made


def test_a_result_whose_page_was_removed_is_made_again(commands: Commands) -> None:
    """Some machines remove old files of /tmp, and then the folder."""

    async def use() -> None:
        results = Results()
        first = await report(results, "/a")
        assert await report(results, "/a") is first
        assert first.page is not None
        first.page.unlink()
        assert results.page(first.id) is None
        second = await report(results, "/a")
        assert second.page is not None
        assert second.page.read_text() == "page"
        shutil.rmtree(second.page.parent)
        third = await report(results, "/a")
        assert results.page(third.id) == third.page
        assert third.page is not None
        assert third.page.parent.stat().st_mode & 0o777 == 0o700
        results.close()
        assert not third.page.parent.exists()

    asyncio.run(use())
    assert commands.ran == ["/a"] * 3


def test_nothing_but_the_page_is_left_of_a_command(commands: Commands) -> None:
    """A command that is ended at its time limit does not remove what it downloaded."""
    results = Results()
    made = asyncio.run(report(results, "/a"))
    assert made.page is not None
    assert list(made.page.parent.iterdir()) == [made.page]
    results.close()
    assert commands.ran == ["/a"]


def test_a_result_of_a_url_is_made_each_time(commands: Commands) -> None:
    """The store may have a newer capture. Its older page stays where it was."""
    commands.store_answers.set()

    async def use() -> None:
        results = Results()
        first, second = await report(results, URL), await report(results, URL)
        assert first.page != second.page
        assert (results.page(first.id), results.page(second.id)) == (first.page, second.page)
        results.close()

    asyncio.run(use())
    assert commands.ran == [URL] * 2


def test_a_store_that_does_not_answer_delays_no_other_result(commands: Commands) -> None:
    """Nor do results that wait for it keep others from being made."""

    async def use() -> None:
        results = Results()
        stored = [asyncio.create_task(report(results, f"{URL}/{n}")) for n in range(MAX_WAITING)]
        await asyncio.sleep(0)
        try:
            assert await results.make(("x",), ["report", "--", URL]) is None
            assert (await report(results, "/a")).page is not None
            assert not any(one.done() for one in stored)
        finally:
            commands.store_answers.set()
        made = await asyncio.gather(*stored)
        assert all(one.page for one in made)
        results.close()

    asyncio.run(use())
