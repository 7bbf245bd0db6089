"""``dynprof trend``, in a terminal, in a pipe and on its page."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from dynprof.captures.manifest import load_manifest
from tests.integration.perfetto import CHROMIUM, needs_browser
from tests.processes import DYNPROF, run
from tests.unit.analysis.vendor_files.captured import window

if TYPE_CHECKING:
    from pathlib import Path

EVERY = {"minutes": 60}
FIRST_SLOW, MANY = 5, 10


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with ten baselines; a step takes longer from the sixth on."""
    place = tmp_path_factory.mktemp("life")
    for hour in range(MANY):
        window(place, hour, 22 if hour < FIRST_SLOW else 70, every=EVERY)
    window(place, MANY, 500)
    return place


def test_a_change_is_named_once_with_its_cause(life: Path) -> None:
    """Pace and operator change at the same baseline: one sentence; other captures do not count."""
    done = run([*DYNPROF, "trend", str(life)])
    assert (done.returncode, done.stderr) == (0, "")
    (said,) = (line for line in done.stdout.splitlines() if line.startswith("A step took"))
    assert said.startswith("A step took 22 ms, and takes 70 ms from the baseline of ")
    assert said.endswith(" on; aten::mm went from 21 ms to 69 ms.")
    (row,) = (line.split() for line in done.stdout.splitlines() if line.startswith("step "))
    assert row[:5] == ["step", "step", "46", "70", "▃▃▃▃▃█████"]


@pytest.mark.parametrize("width", [40, 80])
def test_the_table_fits_the_screen(life: Path, width: int) -> None:
    """Columns that do not fit are left out; the sparkline stays."""
    done = run([*DYNPROF, "trend", str(life)], env={**os.environ, "COLUMNS": str(width)})
    table = done.stdout.partition("A step took")[0]
    assert max(map(len, table.splitlines())) <= width
    assert "▃▃▃▃▃█████" in table


def test_without_baselines_the_command_says_how_to_record_them(tmp_path: Path) -> None:
    """Other captures are none."""
    window(tmp_path, 1, 22)
    done = run([*DYNPROF, "trend", str(tmp_path)])
    assert done.returncode == 2
    assert "has no baselines; dynprof arm DIR --every 30m records them" in done.stderr
    assert run([*DYNPROF, "trend", str(tmp_path), "--browser"]).returncode == 2


def test_baselines_with_other_settings_are_left_out(tmp_path: Path) -> None:
    """Those like the newest are compared, and the number of the others is printed."""
    for hour in range(4):
        window(tmp_path, hour, 22, every=EVERY, with_stack=hour == 1)
    done = run([*DYNPROF, "trend", str(tmp_path)])
    assert "rank 0: 3 baselines" in done.stdout
    assert "baselines with other settings than the newest: 1 of 4" in done.stderr


@pytest.mark.parametrize(("keep", "is_said"), [(4, True), (5, False)])
def test_trend_says_that_older_baselines_are_removed(
    tmp_path: Path, keep: int, *, is_said: bool
) -> None:
    """Once as many are there as the job keeps, the trend does not begin with the job."""
    for hour in range(4):
        window(tmp_path, hour, 22, every=EVERY, keep=keep)
    errors = run([*DYNPROF, "trend", str(tmp_path)]).stderr
    assert ("as the job keeps the newest 4; dynprof history" in errors) == is_said


def test_trend_counts_only_baselines_with_a_trace(tmp_path: Path) -> None:
    """One whose save failed is named; no older one was removed for it."""
    for hour in range(4):
        window(tmp_path, hour, 22, every=EVERY, keep=4)
    (path,) = tmp_path.glob("step_3-*/info/*.json")
    load_manifest(path).without_trace("the disk filled up").save(path)
    done = run([*DYNPROF, "trend", str(tmp_path)])
    assert "rank 0: 3 baselines" in done.stdout
    assert "has no trace: the disk filled up" in done.stderr
    assert "as the job keeps the newest 4" not in done.stderr


@needs_browser
def test_the_page_draws_a_chart_of_each_kind(life: Path, tmp_path: Path) -> None:
    """It loads nothing, and no script fails."""
    from playwright.sync_api import sync_playwright

    output = tmp_path / "trend.html"
    assert run([*DYNPROF, "trend", str(life), "--output", str(output)]).returncode == 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page()
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text))
        page.goto(output.as_uri())
        assert page.locator("#charts canvas").count() == 4
        assert page.inner_text("#verdict").startswith("A step took 22 ms, and takes 70 ms")
        row = page.locator("#all tbody tr").first.inner_text().split()
        assert row[:4] == ["step", "step", "46.000", "70.000"]
        legends = page.locator("#charts .u-legend").all_inner_texts()
        assert not [one for one in legends if "--" in one]
        assert wrong == []
        browser.close()
