"""Root's commands on a user's folder: they act as that user."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from tests import step_traces
from tests.left_captures import left
from tests.users import ALICE, COMMAND, MALLORY, ROOT, as_root, others_run_python

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [as_root, others_run_python]
MARK = "of_root_alone"
"""A name that is only in root's private trace."""
SEND = (
    "import runpy; runpy.run_module('dynprof.captures.sender', run_name='__main__', alter_sys=True)"
)


def dynprof(*arguments: object) -> tuple[int, str, str]:
    """Run a command as root, with a Python that the user can run too."""
    done = ROOT.python(COMMAND, *map(str, arguments))
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def home(shared_tmp: Path) -> Path:
    """Return a user's folder with a config and two traces."""
    home = shared_tmp / "alice"
    home.mkdir(mode=0o700)
    for name in ("a", "b"):
        step_traces.write(home / f"{name}.trace.json", 2, 3, 1.0)
    (home / "profiler_config.json").write_text('{"active": 1}')
    (home / "profiler_config.json").chmod(0o600)
    ALICE.own(home, *home.iterdir())
    return home


@pytest.fixture
def secret(shared_tmp: Path) -> Path:
    """Return a trace that only root may read."""
    path = shared_tmp / "secret"
    step_traces.write(path, 1, 1, 1.0, name=MARK, ph="X", pid=1, tid=1, cat="cpu_op")
    path.chmod(0o600)
    return path


def owners(folder: Path) -> set[int]:
    """Return the users that own a folder and all files below it."""
    return {path.lstat().st_uid for path in (folder, *folder.rglob("*"))}


@pytest.mark.parametrize(
    ("command", "made"),
    [
        (("analyse", "{}", "--processes", 2), "analysis/b/report.html"),
        (("report", "{}/a.trace.json", "--output", "{}/out.html"), "out.html"),
        (("init", "{}/new"), "new/profiler_config.json"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_files_that_root_makes_in_a_users_folder_belong_to_the_user(
    home: Path, command: tuple[object, ...], made: str
) -> None:
    """Every process of the command acts as the user."""
    _, _, errors = dynprof(*(str(part).replace("{}", str(home)) for part in command))
    assert errors.splitlines()[0] == f"acting as uid {ALICE.uid}, who owns {home}"
    assert (home / made).is_file()
    assert owners(home) == {ALICE.uid}


def test_armed_config_keeps_owner_and_permissions(home: Path) -> None:
    """The job can still read the config."""
    dynprof("arm", home, "--active", 7)
    facts = (home / "profiler_config.json").stat()
    assert '"active": 7' in (home / "profiler_config.json").read_text()
    assert (facts.st_uid, stat.S_IMODE(facts.st_mode)) == (ALICE.uid, 0o600)


@pytest.mark.parametrize("command", ["top", "analyse"])
def test_link_to_a_file_of_root_is_not_read(home: Path, secret: Path, command: str) -> None:
    """The target's content gets neither into a copy nor onto the terminal."""
    link = home / "link.trace.json"
    link.symlink_to(secret)
    ALICE.own(link)
    code, output, errors = dynprof(command, link)
    assert code == 2
    assert f"{link} cannot be read by uid {ALICE.uid}" in errors
    assert f"trust that user with root's rights: DYNPROF_TRUST_UIDS={ALICE.uid}" in errors
    assert MARK not in output + errors
    assert not (home / "analysis").exists()


def test_link_among_the_captures_does_not_stop_the_analysis_of_others(
    home: Path, secret: Path
) -> None:
    """The link's target is neither read nor copied."""
    (home / "link.trace.json").symlink_to(secret)
    ALICE.own(home / "link.trace.json")
    _, output, errors = dynprof("analyse", home)
    assert f"{home}/analysis/b/report.html" in output
    files = [path for path in home.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in files if MARK.encode() in path.read_bytes()]
    assert MARK not in output + errors
    assert owners(home) == {ALICE.uid}


def test_output_goes_where_the_owner_may_write(home: Path, shared_tmp: Path) -> None:
    """The owner may not write elsewhere; the error names the acting user."""
    code, _, errors = dynprof("report", home / "a.trace.json", "--output", shared_tmp / "out.html")
    assert code == 2
    assert f"acting as uid {ALICE.uid}" in errors
    assert f"{shared_tmp / 'out.html'} cannot be written by this user" in errors
    assert not (shared_tmp / "out.html").exists()


def test_second_folder_is_read_as_the_owner_of_the_first(home: Path, shared_tmp: Path) -> None:
    """The error says why the second folder is not readable."""
    other = shared_tmp / "mallory"
    other.mkdir(mode=0o700)
    step_traces.write(other / "c.trace.json", 1, 1, 1.0)
    MALLORY.own(other, other / "c.trace.json")
    code, _, errors = dynprof("diff", home, other)
    assert code == 2
    assert errors.count("acting as") == 1
    assert f"'{other}' is not readable" in errors


def test_folder_is_reached_through_roots_link_in_a_private_folder(
    home: Path, shared_tmp: Path
) -> None:
    """The user cannot follow that path, even if root works in the private folder.

    The link has the name of a command.
    """
    private = shared_tmp / "private"
    private.mkdir(mode=0o700)
    (private / "validate").symlink_to(home)
    done = ROOT.python(f"import os; os.chdir({str(private)!r}); {COMMAND}", "validate", "validate")
    assert (done.returncode, f"{home}/profiler_config.json: valid" in done.stdout) == (0, True)


def test_capture_that_root_sends_is_sent_as_its_owner(home: Path, secret: Path) -> None:
    """The capture goes where the user may write, not through the user's link to root's folder."""
    folder = left(home)
    (home / "link").symlink_to(secret.parent)
    ALICE.own(*home.rglob("*"))
    refused = ROOT.python(SEND, folder, home / "link" / "sent")
    assert refused.stderr.startswith(f"acting as uid {ALICE.uid}, who owns {home}\n")
    assert (refused.returncode, "permission denied" in refused.stderr) == (1, True)
    assert ROOT.python(SEND, folder, home / "sent").returncode == 0
    assert (home / "sent/info/rank_0.info.json").is_file()
    assert owners(home) == {ALICE.uid}
    assert sorted(path.name for path in secret.parent.iterdir()) == ["alice", "secret"]
