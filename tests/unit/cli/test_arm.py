"""The messages of ``arm`` on its request and the ranks."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from dynprof.cli.app import app
from dynprof.cli.arm import _print_conflicts, _print_recorded_steps, _print_request_notes
from dynprof.cli.outcome import INVALID
from dynprof.config import ProfilerConfig, parse_config
from dynprof.journal.edit_outcomes import Answer
from dynprof.journal.status import LEADS, NO_SOURCE, Status

if TYPE_CHECKING:
    from pathlib import Path


def test_arm_names_a_rank_without_steps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The user then does not wait for a first step that never ends."""
    why = f"{NO_SOURCE}: no step has ended in 30 s: no torch optimizer has made a step"
    here = {"host": "node9", "heartbeat": time.time(), "longest_s": None}
    _print_request_notes(
        [Status("idle", rank=0, **here), Status("idle", rank=3, steps_from=why, **here)],  # type: ignore[arg-type]
        {},
    )
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("2 ranks are still in their first step")
    assert said[1:] == [f"rank 3: it has {why}"]


def test_settings_that_defaults_does_not_reset_have_no_hint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The hint names the settings that --defaults resets, and no others."""
    kept: dict[tuple[str, ...], str] = {("prof_dir",): 'prof_dir "captures"'}
    _print_request_notes([], kept)
    _print_request_notes([], {("active",): "active 2", **kept})
    assert capsys.readouterr().err.splitlines() == [
        'kept from the file: prof_dir "captures"',
        'kept from the file: active 2, prof_dir "captures"; --defaults resets active',
    ]


def test_a_bad_value_of_an_option_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    """A bad value that the file has is named with its line."""
    config = tmp_path / "profiler_config.json"
    config.write_text('{\n"active": 1, "warmup": -2}')
    done = CliRunner().invoke(app, ["arm", str(tmp_path), "--active", "0"])
    assert done.exit_code == INVALID
    said = "--active: 0 is not allowed; write a whole number of at least 1."
    assert said in done.output.splitlines()
    assert f"{config}: line 2, column" in done.output
    assert config.read_text() == '{\n"active": 1, "warmup": -2}'


@pytest.mark.parametrize(
    ("agreement", "waits"),
    [
        ("", "waits for it; "),
        (LEADS, "waits for it for 7 s at most, then leaves the rank out (agreement.patience_s); "),
    ],
)
def test_arm_tells_how_long_a_request_waits_for_an_open_window(
    capsys: pytest.CaptureFixture[str], agreement: str, waits: str
) -> None:
    """Ranks that agree do not wait for the end of one rank's window."""
    is_open = (Answer(1, "abc", 0.0, "open"),)
    there = Status("recording", agreement=agreement, progress=(23, 1800), edits=is_open)
    _print_conflicts([there], parse_config(b'{"agreement": {"patience_s": 7}}').config)
    (said,) = capsys.readouterr().err.splitlines()
    text = "rank 0: request 1 is open for 1,777 steps more; this one "
    assert said == f"{text}{waits}dynprof cancel ends both"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('"start_step": 300, "warmup": 2', "records steps 302-305, after 2 steps of warm-up\n"),
        (
            '"start_step": "next multiple of 100", "warmup": 1',
            "from the next multiple of 100 on, 1 step of warm-up, then records 4 steps\n",
        ),
        ('"start_step": 300', ""),
        ('"warmup": 2', ""),
    ],
)
def test_arm_names_the_steps_recorded_after_a_warm_up(
    capsys: pytest.CaptureFixture[str], config: str, said: str
) -> None:
    """The recording starts at the named step; a warm-up kept from the file comes before."""
    _print_recorded_steps(parse_config(f'{{"active": 4, {config}}}'.encode()).config)
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("given", "every"),
    [
        ("30m", {"minutes": 30}),
        ("2h", {"minutes": 120}),
        ("90 s", {"minutes": 1.5}),
        ("5000 steps", {"steps": 5000}),
        ("1 step", {"steps": 1}),
    ],
)
def test_an_interval_has_a_unit(tmp_path: Path, given: str, every: dict[str, float]) -> None:
    """The file has minutes or steps; the next request without the option is a single window."""
    config = tmp_path / "profiler_config.json"
    config.write_text("{}")
    CliRunner().invoke(app, ["arm", str(tmp_path), "--every", given, "--keep", "3"])
    assert json.loads(config.read_text()) == {"every": every, "keep": 3}
    CliRunner().invoke(app, ["arm", str(tmp_path), "--active", "2"])
    assert json.loads(config.read_text()) == {"every": None, "keep": 20, "active": 2}


@pytest.mark.parametrize("options", [["--every", "30"], ["--every", "soon"], ["--keep", "3"]])
def test_an_interval_without_a_unit_is_refused(tmp_path: Path, options: list[str]) -> None:
    """Nothing is saved; --keep alone has no meaning."""
    config = tmp_path / "profiler_config.json"
    config.write_text("{}")
    done = CliRunner().invoke(app, ["arm", str(tmp_path), *options])
    assert done.exit_code == 2
    assert "--every" in done.output
    assert config.read_text() == "{}"


def test_defaults_keep_the_job_and_nothing_of_an_earlier_request(tmp_path: Path) -> None:
    """Steps, ranks, detail and limits have their defaults; the place of captures stays."""
    path = tmp_path / "profiler_config.json"
    earlier = {"active": 9, "warmup": 2, "with_stack": True, "ranks": "7", "metadata": {"run": 1}}
    of_job = {"activities": ["CPU"], "prof_dir": "captures", "watch": {"slower_than": 2.0}}
    path.write_text(json.dumps({**earlier, **of_job, "limits": {"max_seconds": 2}}))
    before = parse_config(path.read_bytes()).config
    CliRunner().invoke(app, ["arm", str(tmp_path), "--defaults", "--warmup", "1"])
    after = parse_config(path.read_bytes()).config
    usual = ProfilerConfig()
    assert (after.active, after.with_stack, after.ranks) == (usual.active, False, None)
    assert (after.warmup, after.limits) == (1, usual.limits)
    kept = ("activities", "prof_dir", "watch", "metadata")
    assert [getattr(after, one) for one in kept] == [getattr(before, one) for one in kept]
