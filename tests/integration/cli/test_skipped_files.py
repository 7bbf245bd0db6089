"""Commands on a folder in which other users have put links and files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from dynprof.cli.outcome import MAX_SKIPPED
from tests.integration.commands import dynprof
from tests.rank_traces import write
from tests.users import ALICE, COMMAND, MALLORY, ROOT, as_root, others_run_python

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "S3CRET"  # noqa: S105 - not a real one


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a trace, and links to a secret in place of all other files."""
    (tmp_path / "secret").write_text(f'{{"{SECRET}": "{SECRET}", "traceEvents": []}}')
    found = tmp_path / "job"
    (found / "info").mkdir(parents=True)
    write(found, 0)
    for name in ("rank1.pt.trace.json", "info/rank_0.info.json", "info/window.json"):
        (found / name).symlink_to(tmp_path / "secret")
    return found


@pytest.mark.parametrize("command", ["report", "analyse", "top", "diff"])
def test_links_in_a_folder_are_named_and_not_read(folder: Path, command: str) -> None:
    """The trace is read; no file and no output has content of the links' targets."""
    code, output, errors = dynprof(command, *([folder] * (2 if command == "diff" else 1)))
    assert code == 0, errors
    for name in ("rank1.pt.trace.json", "info/rank_0.info.json", "info/window.json"):
        assert f"skipped: {folder / name} is a symbolic link" in errors.splitlines()
    assert SECRET not in output + errors
    made = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in made if SECRET.encode() in path.read_bytes()]


def test_a_link_that_the_user_names_is_followed(folder: Path, tmp_path: Path) -> None:
    """The user may name a link to a trace or a folder; results are next to the trace."""
    (folder / "rank1.pt.trace.json").unlink()
    for number, target in enumerate((folder / "rank0.pt.trace.json", folder)):
        link = tmp_path / f"link{number}"
        link.symlink_to(target)
        assert dynprof("top", link)[0] == 0
        code, output, _ = dynprof("report", link)
        assert (code, output.splitlines()[-1].startswith(f"{folder}/analysis/rank0.pt")) == (
            0,
            True,
        )


def test_only_some_of_many_skipped_files_are_named(folder: Path) -> None:
    """Only some of many skipped files are named, because another user may plant any number."""
    for number in range(30):
        (folder / f"{number}.trace.json").symlink_to("/nowhere")
    _, _, errors = dynprof("top", folder)
    skipped = [line for line in errors.splitlines() if line.startswith("skipped: ")]
    assert (len(skipped), skipped[-1]) == (MAX_SKIPPED + 1, "skipped: and 25 more")


def test_line_breaks_in_names_of_skipped_files_are_escaped(folder: Path) -> None:
    """A line break in its name is shown escaped."""
    (folder / "a\nskipped: b.trace.json").symlink_to("/nowhere")
    _, _, errors = dynprof("top", folder)
    assert "a\\nskipped: b.trace.json is a symbolic link" in errors


@as_root
@others_run_python
@pytest.mark.parametrize("command", ["status", "log", "top"])
def test_files_of_another_user_are_named_and_not_read(shared_tmp: Path, command: str) -> None:
    """The files' owner is neither the folder's owner, nor root, nor the caller.

    Otherwise the command would show such files.
    """
    planted = {"status": "status/rank_0.json", "log": "log/dp_a_1_rank_0.log"}
    path = shared_tmp / planted.get(command, "a.trace.json")
    event = {"ph": "X", "cat": "cpu_op", "name": SECRET, "pid": 1, "tid": 1, "ts": 1, "dur": 5}
    content = {
        "status": json.dumps({"state": "idle", "host": SECRET, "last_error": SECRET}),
        "log": f"2026-01-31 03:00:00.123 INFO    rank 0  {SECRET}\n",
        "top": json.dumps({"traceEvents": [event]}),
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(content[command])
    assert SECRET in "".join(dynprof(command, shared_tmp)[1:])
    ALICE.own(shared_tmp, path.parent)
    MALLORY.own(path)
    done = ROOT.python(COMMAND, command, shared_tmp)
    assert f"skipped: {path} belongs to uid {MALLORY.uid}" in done.stderr.splitlines()
    assert SECRET not in done.stdout + done.stderr
