"""Which answers of the detached close's self-test are kept for other processes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from dynprof.backends.torch import detached_close_selftest
from dynprof.backends.torch.detached_close_selftest import (
    SelfTest,
    Verdict,
    cache_file,
    cached_verdict,
)
from tests.integration.running import wait_for

pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of the kept answer; it does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache_file()


WORKS = """print('{"verdict": ""}')"""


def instead(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Replace the self-test by this code."""
    line = [sys.executable, "-c", f"import os, sys; {code}"]
    monkeypatch.setattr(detached_close_selftest, "command", lambda *_, **__: line)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("os.kill(os.getpid(), 9)", "code -9: no output"),  # as the kernel does without memory
        ("os.kill(os.getpid(), 15)", "code -15: no output"),
        ("os.abort()", "code -6: no output"),  # as under a limit on memory
        ("sys.exit('OSError: no space left')", "code 1: OSError: no space left"),
    ],
)
def test_a_self_test_that_fails_to_run_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, cache: Path, code: str, words: str
) -> None:
    """The inline close is used, and the next process runs the self-test again."""
    monkeypatch.delenv("PYTHONFAULTHANDLER", raising=False)  # it would add words for the third case
    instead(monkeypatch, code)
    assert cached_verdict() == Verdict(f"the self-test of the detached close ended with {words}")
    assert not cache.exists()
    instead(monkeypatch, WORKS)
    assert cached_verdict() == Verdict("", is_final=True)


def test_a_self_test_that_times_out_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    """The machine may have been busy."""
    instead(monkeypatch, "import time; time.sleep(60)")
    monkeypatch.setattr(detached_close_selftest, "TIMEOUT_S", 0.1)
    assert cached_verdict() == Verdict("the self-test of the detached close took longer than 0 s")
    assert not cache.exists()


def test_the_answer_of_the_self_test_is_kept(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """An answer that it does not work is kept as well; only this user can access it."""
    instead(monkeypatch, """print('{"verdict": "it is not there"}')""")
    verdict = Verdict("it is not there", is_final=True)
    assert cached_verdict() == verdict
    instead(monkeypatch, WORKS)
    assert cached_verdict() == verdict
    assert cache.parent.stat().st_mode & 0o077 == 0


def test_a_self_test_that_could_not_run_is_repeated_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later request runs the self-test again, during the recording."""
    asked = SelfTest()
    monkeypatch.setattr(detached_close_selftest, "command", lambda *_, **__: ["/nowhere/python"])
    asked.begin()
    wait_for("the answer", lambda: asked.answer)
    assert "the self-test of the detached close could not run: [Errno 2]" in str(asked.answer)
    instead(monkeypatch, WORKS)
    asked.begin()
    assert asked.answer  # not yet: the machine may be unchanged
    monkeypatch.setattr(detached_close_selftest, "RETRY_S", 0.0)
    asked.begin()
    wait_for("another answer", lambda: asked.answer == "" or None)


def test_an_answer_that_cannot_be_kept_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """This covers a full disk, and a home that is not a directory."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    instead(monkeypatch, WORKS)
    assert cached_verdict() == Verdict("", is_final=True)


def test_python_variables_do_not_affect_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that makes warnings errors, or sets Python's variables, gets the same answer."""
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    assert cached_verdict() == Verdict("", is_final=True)


def plant(cache: Path, how: str) -> None:
    """Put an answer into the cache in a way that other users could."""
    cache.parent.mkdir(mode=0o700)
    text = json.dumps({"verdict": "planted"})
    if how == "a link":
        (cache.parent / "real").write_text(text)
        cache.symlink_to("real")
    elif how == "a FIFO":
        os.mkfifo(cache)
    else:
        cache.write_text(text if how != "no answer" else '{"verdict": 5}')
    cache.parent.chmod(0o770 if how == "a folder of the group" else 0o700)


@pytest.mark.parametrize("how", ["a link", "a FIFO", "a folder of the group", "no answer"])
def test_a_planted_answer_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, cache: Path, how: str
) -> None:
    """A planted answer would switch the detached close on. The self-test replaces it."""
    plant(cache, how)
    instead(monkeypatch, WORKS)
    assert cached_verdict() == Verdict("", is_final=True)
    assert json.loads(cache.read_text())["verdict"] == ""
    assert not cache.is_symlink()


def test_another_users_answer_is_not_taken(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Nothing is written into that user's folder either."""
    plant(cache, "a file")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    instead(monkeypatch, WORKS)
    assert cached_verdict() == Verdict("", is_final=True)
    assert "planted" in cache.read_text()


def test_an_answer_in_another_users_folder_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    """The file may be this user's: another user could make a hard link to it."""
    plant(cache, "a file")
    real, folder = Path.stat, cache.parent

    def stat(path: Path, **how: bool) -> os.stat_result:
        facts = real(path, **how)
        if path != folder:
            return facts
        return os.stat_result([*facts[:4], facts.st_uid + 1, *facts[5:10]])

    monkeypatch.setattr(Path, "stat", stat)
    instead(monkeypatch, WORKS)
    assert cached_verdict() == Verdict("", is_final=True)
    assert "planted" in cache.read_text()


def test_the_self_test_does_not_begin_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a small container the system would kill the job; the self-test is tried again later."""
    monkeypatch.setattr(detached_close_selftest, "free_mb", lambda: 150.0)
    monkeypatch.setattr(detached_close_selftest, "command", None)
    verdict = detached_close_selftest.run_in_fresh_interpreter()
    assert verdict.answer == (
        "the detached close was not tried: 150 MB of memory are free, and its self-test needs 200"
    )
    assert not verdict.is_final
