"""The commands that act as the owner of a given path."""

from __future__ import annotations

import io
import os
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
import typer
from typer.testing import CliRunner

from dynprof.cli import config_directory, outcome
from dynprof.cli.app import app
from dynprof.errors import OwnerError

if TYPE_CHECKING:
    from collections.abc import Callable

COMMANDS = {
    name: command.make_context(name, [], resilient_parsing=True).command
    for name, command in typer.main.get_command(app).commands.items()  # type: ignore[attr-defined]
}
NO_PATH = {"env", "mstx"}
AS_CALLER = {"run", "demo", "attach", "detach"}
"""Commands that start a job of the caller, or attach to one."""
LOOKS = ((os, "open"), (os, "listdir"), (os, "scandir"), (os, "mkdir"), (io, "open"))
"""Python functions that open, list or create a path."""


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the growing list of paths that are opened below the test's folder."""
    noted: list[str] = []

    def noting(look: Callable[..., Any]) -> Callable[..., Any]:
        def note(path: Any = ".", *arguments: Any, **named: Any) -> Any:
            noted.extend([str(path)] if str(path).startswith(str(tmp_path)) else [])
            return look(path, *arguments, **named)

        return note

    for module, name in LOOKS:
        monkeypatch.setattr(module, name, noting(getattr(module, name)))
    return noted


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - NO_PATH - AS_CALLER))
def test_command_acts_as_owner_before_it_opens_a_path(
    name: str, tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new command with a path does so too, or is in one of the lists above."""

    def act(path: Path, _: object, **__: object) -> NoReturn:
        assert path == tmp_path
        assert opened == []
        raise OwnerError("the owner takes over here")

    monkeypatch.setattr(config_directory, "act_as_owner", act)
    count = sum(one.param_type_name == "argument" for one in COMMANDS[name].params)
    done = CliRunner().invoke(app, [name, *[str(tmp_path)] * count])
    assert (done.exit_code, done.output.strip()) == (2, "the owner takes over here")


def test_url_of_this_machine_is_a_path_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """URLs of other kinds have no owner here."""
    seen: list[Path] = []

    def act(path: Path, _: object, **__: object) -> Path:
        seen.append(path)
        return path

    monkeypatch.setattr(config_directory, "act_as_owner", act)
    for url in (f"file://{tmp_path}", "memory://nothing"):
        assert CliRunner().invoke(app, ["analyse", url]).exit_code == 2
    assert seen == [tmp_path]


def test_shell_completion_acts_as_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Completion opens nothing, so it prints nothing."""
    monkeypatch.setattr(config_directory, "act_as_owner", pytest.fail)
    for name in set(COMMANDS) - NO_PATH - AS_CALLER:
        count = sum(one.param_type_name == "argument" for one in COMMANDS[name].params)
        COMMANDS[name].make_context(name, [str(tmp_path)] * count, resilient_parsing=True)


def test_process_id_is_no_path_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's process is root's own, though it may be in a user's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config_directory, "act_as_owner", pytest.fail)
    done = CliRunner().invoke(app, ["status", str(2**22 + 1)])
    assert (done.exit_code, "no process" in done.output) == (2, True)


def test_a_process_id_selects_the_directory_that_the_process_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner's command gets the directory, because it may not inspect root's process."""
    seen = []
    monkeypatch.setattr(config_directory, "_directory_of_process", lambda _: tmp_path)
    monkeypatch.setattr(config_directory, "act_as_owner", lambda *_, named: seen.append(named))
    config_directory.captures_of(Path(str(2**22 + 1)))
    assert seen == [str(2**22 + 1)]


def test_a_missing_browser_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """This is the case in a command that root runs as another user."""
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    outcome.open_page("http://127.0.0.1/")
    assert "no browser can be opened here" in capsys.readouterr().err
