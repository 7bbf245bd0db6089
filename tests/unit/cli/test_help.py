"""The output of ``--help`` on screens of several widths."""

from __future__ import annotations

import os
import re

import pytest
import typer
from typer.testing import CliRunner

from dynprof.cli.app import COMMANDS, app
from dynprof.cli.options import SECTIONS, SHORT_HELP, changes, settings
from tests.processes import DYNPROF, run

NOT_OFFERED = {"$schema", "cancel", "is_rank", "rank_list", *SECTIONS}
NOT_OFFERED |= {"max_per_hour", "budget_percent"}
"""Keys that are not settings of a window, or for which a better option exists."""


def shown(command: str, width: int) -> list[str]:
    """Return the lines of a command's help; without a command, of the general help."""
    env = {"COLUMNS": str(width), "NO_COLOR": "1", "TERM": "dumb"}
    done = CliRunner().invoke(app, [*command.split(), "--help"], env=env)
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


@pytest.mark.parametrize("width", [60, 120])
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_nothing_is_cut(command: str, width: int) -> None:
    """No line is wider than the screen, no name is cut, and no switch shows a value."""
    lines = shown(command, width)
    assert max(map(len, lines)) <= width
    text = "".join(lines)
    assert not [word for word in ("…", "<bool>", "BOOLEAN") if word in text]


@pytest.mark.parametrize("command", COMMANDS)
def test_list_of_commands_has_their_first_paragraphs(command: str) -> None:
    """The list is printed without loading a command, so its texts are stored separately."""
    framed = " ".join(line.strip("│ ") for line in shown(command, 200))
    assert COMMANDS[command] in " ".join(framed.split())


def test_on_forty_columns_the_options_keep_their_names() -> None:
    """Frames would cut the names of options, so the help is plain."""
    done = run([*DYNPROF, "arm", "--help"], env={**os.environ, "COLUMNS": "40"})
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 40
    names = {line.split()[0] for line in lines if line.lstrip().startswith("--")}
    assert {f"--{setting.key.replace('_', '-')}" for setting in settings()} <= names
    assert "…" not in done.stdout


def test_every_setting_is_offered_once() -> None:
    """The panels have the model's settings, with those that operators need most first."""
    keys = [field.alias or name for model in SECTIONS.values()
            for name, field in model.model_fields.items()]  # fmt: skip
    offered = [setting.key for setting in settings()]
    assert sorted(offered) == sorted(set(keys) - NOT_OFFERED)
    assert offered[:4] == ["active", "warmup", "start_step", "ranks"]
    assert set(SHORT_HELP) <= set(offered)


def test_the_help_of_arm_is_read_at_a_glance() -> None:
    """Common options come first, the rest in groups, a line each; the help fits two screens."""
    lines = shown("arm", 80)
    assert len(lines) <= 90
    titles = re.findall(r"╭─ ([\w ]+) ─", "\n".join(lines))
    assert titles[:3] == ["Arguments", "Options", "Limits and agreement"]
    assert titles[-1] == "Ascend NPU"
    first = lines[next(n for n, line in enumerate(lines) if "─ Options" in line) :]
    names = re.findall(r"│ (--[\w-]+)", "\n".join(first))
    assert names[:2] == ["--active", "--warmup"]
    assert names.index("--wait") < names.index("--with-flops")
    assert len(names) == sum(1 for line in first if line.startswith("│ "))


def test_each_switch_has_an_off_option() -> None:
    """The off option exists though the help does not list it; both together are an error."""
    nothing = {"with_stack": False, "no_with_stack": False}
    assert changes(nothing) == {}
    assert changes({**nothing, "with_stack": True}) == {("with_stack",): True}
    assert changes({**nothing, "no_with_stack": True}) == {("with_stack",): False}
    with pytest.raises(typer.BadParameter, match="both --with-stack and --no-with-stack"):
        changes({"with_stack": True, "no_with_stack": True})
