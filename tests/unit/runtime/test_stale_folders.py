"""Unfinished work of dead processes is removed, that of live ones is not."""

from __future__ import annotations

import fcntl
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from dynprof.runtime.safe_write import MARK, PrivateFolder
from dynprof.runtime.stale_folders import folder_lock, remove_leftovers
from tests.processes import run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(
    params=[
        "step_1-2_x/info/.h_1.rank0.saving",
        "sub/step_1-2_x/info/.h_1.rank0.saving",
        "outgoing/h_1.rank0/step_1-2_x/info/.h_1.rank0.saving",
        "sub/.h_1.rank0.recording",
        "outgoing/h_1.rank0/.h_1.rank0.recording",
    ]
)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder of unfinished work; captures also have a separate place for it."""
    path: Path = tmp_path / request.param
    path.mkdir(parents=True)
    path.chmod(0o700)
    (path / MARK).touch()
    (path / "half.json").write_text("[")
    return path


def test_a_folder_without_a_lock_is_removed(tmp_path: Path, folder: Path) -> None:
    """The folder is removed with its content; its neighbours stay."""
    (folder.parent / "rank_0.info.json").touch()
    assert remove_leftovers((tmp_path,), "h") == [folder]
    assert [path.name for path in folder.parent.iterdir()] == ["rank_0.info.json"]


def test_a_folder_with_a_lock_stays(tmp_path: Path, folder: Path) -> None:
    """The folder's age does not matter; after its release it is a leftover."""
    with folder_lock(folder):
        assert remove_leftovers((tmp_path,), "h") == []
    assert remove_leftovers((tmp_path,), "h") == [folder]


@pytest.mark.parametrize(("patience_s", "got_it"), [(60.0, True), (0.05, False)])
def test_the_wait_for_a_lock_has_the_given_timeout(
    folder: Path, patience_s: float, got_it: bool
) -> None:
    """The wait ends with the release of the lock, or at the timeout."""
    got = []

    def wait() -> None:
        with folder_lock(folder, patience_s=patience_s) as mine:
            got.append(mine)

    waiting = threading.Thread(target=wait)
    with folder_lock(folder):
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive() == got_it
    waiting.join()
    assert got == [got_it]


def test_a_killed_process_releases_its_lock(tmp_path: Path, folder: Path) -> None:
    """The lock ends with the process, whatever the reason."""
    code = "import sys,os;from pathlib import Path\n"
    code += "from dynprof.runtime.stale_folders import folder_lock\n"
    code += "with folder_lock(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    done = run([sys.executable, "-c", code, folder])
    assert done.returncode == -9
    assert remove_leftovers((tmp_path,), "h") == [folder]


def test_another_machines_work_stays(tmp_path: Path, folder: Path) -> None:
    """Locks of another machine are not visible here."""
    assert remove_leftovers((tmp_path,), "other") == []


def test_a_folder_that_is_being_made_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without its lock has no mark yet, and no process tries its lock."""
    seen: list[object] = []

    def lock(descriptor: int, how: int) -> None:
        seen.append(remove_leftovers((tmp_path,), "h"))
        flock(descriptor, how)

    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lock)
    made = PrivateFolder(tmp_path / ".h_1.rank0.recording")
    monkeypatch.undo()
    assert seen == [[]]
    assert remove_leftovers((tmp_path,), "h") == []
    made.remove()


def test_a_link_is_never_removed_through(tmp_path: Path) -> None:
    """The link's target is not dynprof's."""
    (tmp_path / "victim").mkdir()
    (tmp_path / ".h_1.rank0.recording").symlink_to(tmp_path / "victim")
    assert remove_leftovers((tmp_path,), "h") == []
    assert (tmp_path / "victim").is_dir()


@pytest.mark.parametrize("change", ["mode", "mark"])
def test_a_folder_that_a_member_renames_stays(tmp_path: Path, folder: Path, change: str) -> None:
    """Another user may rename a folder of the job's user, but not mark it or change its mode."""
    folder.chmod(0o750) if change == "mode" else (folder / MARK).unlink()
    assert remove_leftovers((tmp_path,), "h") == []
    assert (folder / "half.json").exists()
