"""Every setting of the config as a command line option, and the settings kept from the file."""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from dynprof.cli.numbers import number_or_text
from dynprof.cli.outcome import INVALID, fail
from dynprof.config import (
    AgreementConfig,
    ExperimentalConfig,
    Limits,
    ProfilerConfig,
    StorageConfig,
    ThenConfig,
    WatchConfig,
)
from dynprof.journal.event_command import command_of, split_command
from dynprof.steps.base import StepOption, step_option_of

if typing.TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

SECTIONS: dict[str, type[BaseModel]] = {
    "": ProfilerConfig,
    "experimental_config": ExperimentalConfig,
    "limits": Limits,
    "agreement": AgreementConfig,
    "storage": StorageConfig,
    "watch": WatchConfig,
}
METAVARS = {bool: "", str: "TEXT", int: "N", float: "X", list: "A,B", dict: "K=V"}
"""Placeholder of a value in the help, by type."""
NOT_REPORTED = {"activities"}
"""Settings not reported as kept: they belong to the job, and the first config has them."""
PANELS: dict[str | None, tuple[str, ...]] = {
    None: (
        "active", "warmup", "start_step", "ranks",
        "record_shapes", "profile_memory", "with_stack", "keep",
    ),
    "Limits and agreement": (
        "max_seconds", "max_memory_mb", "max_events", "min_free_disk_mb", "patience_s", "unable",
    ),
    "Watch for slow steps": ("slower_than", "longer_than_ms", "then"),
    "More detail": (
        "activities", "with_flops", "with_modules", "record_op_args", "memory_snapshot",
        "gc_detect_threshold", "host_sys", "profiler_level", "backend",
    ),
    "Marks of the script": ("mstx", "mstx_domain_include", "mstx_domain_exclude", "msprof_tx"),
    "Files and tables": (
        "prof_dir", "scratch_dir", "spread_s", "retry_s", "metadata", "analyse", "export_type",
        "async_mode",
    ),
    "Ascend NPU": (
        "aic_metrics", "l2_cache", "op_attr", "data_simplification", "sys_io",
        "sys_interconnection",
    ),
}  # fmt: skip
"""The settings of each panel of the help; the one without a title is first, with --wait."""
SHORT_HELP = {
    "warmup": "Warm-up steps before them, not recorded.",
    "start_step": 'Step; 0: the next; or "next multiple of 100".',
    "ranks": 'Which ranks: all, 0-3,8, "every 64th", ...',
    "keep": "With --every: keep the newest N.",
    "patience_s": "How long to wait for a busy rank, in s.",
    "unable": "If one rank cannot: refuse or downgrade.",
    "record_shapes": "Shapes and types of operator inputs.",
    "profile_memory": "Allocations and releases of tensor memory.",
    "with_stack": "Python call stacks; costs more.",
    "max_seconds": "Close early after this many seconds.",
    "max_memory_mb": "Close early if memory grew by this many MB.",
    "max_events": "Close early at this many events; 0: never.",
    "min_free_disk_mb": "Do not open or save with less free disk.",
    "slower_than": "Slow: more than X times the median.",
    "longer_than_ms": "Slow: more than X ms.",
    "then": "Record a window then, as by active=3.",
    "activities": "What to record: CPU, CUDA, XPU, NPU.",
    "with_flops": "Estimated operations of matrix products.",
    "record_op_args": "Operators' arguments, in a separate file.",
    "memory_snapshot": "The history of the device's memory.",
    "gc_detect_threshold": "Garbage collections longer than X ms.",
    "host_sys": "Sample the host: cpu, mem, disk, network.",
    "profiler_level": "Level_none, Level0, Level1 or Level2.",
    "backend": "torch, npu, python, or auto.",
    "mstx": "Marks and ranges that the script sets.",
    "prof_dir": "Where captures go: a directory or a URL.",
    "scratch_dir": "Assemble captures here, then move them.",
    "spread_s": "Spread the start of writes over X seconds.",
    "retry_s": "How long to retry moving a capture, in s.",
    "metadata": "Stored in the trace; may be repeated.",
    "export_type": "Format of the tables: text, db or both.",
    "aic_metrics": "Metrics of AI cores, from Level1 on.",
    "op_attr": "Attributes of aclnn operators, into db.",
    "data_simplification": "Delete the raw data of the tables.",
}
"""Help texts shorter than the description of the setting."""


@dataclass(frozen=True)
class Setting:
    """One setting and its option.

    Attributes:
        section: The object in the file that holds it; empty for the top level.
        key: Its key in the section.
        kind: Type of the option: ``bool``, ``int``, ``float``, ``str``, ``list`` or ``dict``.
        help: Its meaning, in a few words.
        panel: Title in the help under which it is shown; None: first.
        accepts_one_value: Whether the file may hold one value instead of a list.
        accepts_number: Whether the file may hold a number instead of a string.
    """

    section: str
    key: str
    kind: type
    help: str
    panel: str | None
    accepts_one_value: bool
    accepts_number: bool

    @property
    def path(self) -> tuple[str, ...]:
        """The keys from the top of the file."""
        return (self.section, self.key) if self.section else (self.key,)

    @property
    def off(self) -> str:
        """Name of the parameter that switches it off."""
        return f"no_{self.key}"

    def parameters(self) -> Iterator[inspect.Parameter]:
        """Yield the option for Typer, and for a ``bool`` a hidden one that switches it off."""
        name = self.key.replace("_", "-")
        option = typer.Option(
            f"--{name}",
            help=self.help,
            metavar=METAVARS[self.kind],
            show_default=False,
            rich_help_panel=self.panel,
        )
        if self.kind is bool:
            yield _parameter(self.key, False, bool, option)
            yield _parameter(self.off, False, bool, typer.Option(f"--no-{name}", hidden=True))
            return
        # Numbers are taken as text: the config's own check prints better errors.
        wanted: Any = list[str] | None if self.kind in (list, dict) else str | None
        yield _parameter(self.key, None, wanted, option)

    def given_in(self, arguments: dict[str, Any]) -> Any:
        """Return the value for the file from the command line; None if the option was not given.

        Raises:
            typer.BadParameter: It is both on and off, or a pair has no key or no equals sign.
        """
        given = arguments.get(self.key)
        if self.kind is bool:
            off = arguments.get(self.off)
            if given and off:
                name = self.key.replace("_", "-")
                raise typer.BadParameter(f"both --{name} and --no-{name} are given; keep one")
            return True if given else False if off else None
        return None if given is None else self._value(given)

    def _value(self, given: Any) -> Any:
        if self.kind is dict:
            return dict(map(_pair, given))
        if self.kind is list:
            parts = [part.strip() for several in given for part in several.split(",")]
            found = [int(part) if part.isdigit() else part for part in parts]
            return found[0] if self.accepts_one_value and len(found) == 1 else found
        if self.kind in (int, float):
            return number_or_text(given, self.kind)
        return number_or_text(given, int) if self.accepts_number else given


def settings() -> Iterator[Setting]:
    """Yield the settings that the command line offers, in the order of the help."""
    fields = {
        field.alias or name: (section, field)
        for section, model in SECTIONS.items()
        for name, field in model.model_fields.items()
    }
    for panel, keys in PANELS.items():
        for key in keys:
            section, field = fields[key]
            words = SHORT_HELP.get(key) or field.description or ""
            kind = _kind(field)
            number = kind is str and int in map(_base_type, _parts(field.annotation))
            yield Setting(section, key, kind, words, panel, _is_enumeration(field), number)


def _parameter(name: str, default: Any, kind: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, option],
    )


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for every setting; it receives them as ``**given``."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    offered = [option for setting in settings() for option in setting.parameters()]
    named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own[1:]]
    command.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[own[0], *offered, *named]
    )
    command.__annotations__ = {p.name: p.annotation for p in [own[0], *offered, *named]}
    return command


def changes(given: dict[str, Any]) -> dict[tuple[str, ...], Any]:
    """Return the settings given on the command line, by their path in the file.

    Raises:
        typer.BadParameter: One is both on and off, or a pair has no key or no equals sign.
    """
    found = {setting.path: setting.given_in(given) for setting in settings()}
    return {path: value for path, value in found.items() if value is not None}


def _kind(field: FieldInfo) -> type:
    """Return the type of a field's option; ``str`` if the field accepts several types."""
    found = {_base_type(part) for part in _parts(field.annotation)} - {type(None)}
    for kind in (bool, int, float, dict):
        if found == {kind}:
            return kind
    if found == {ThenConfig}:
        return dict
    return list if list in found and (str not in found or _is_enumeration(field)) else str


def _is_enumeration(field: FieldInfo) -> bool:
    """Return whether a field accepts a fixed set of names."""
    return any(typing.get_origin(part) is typing.Literal for part in _parts(field.annotation))


def _parts(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(part for arg in typing.get_args(annotation) for part in _parts(arg))
    return (annotation,)


def _base_type(annotation: Any) -> Any:
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _base_type(typing.get_args(annotation)[0])
    if origin is typing.Literal:
        return type(typing.get_args(annotation)[0])
    return origin or annotation


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise typer.BadParameter(f"{text!r} is not a pair; write a key, = and a value")
    return key, _json_or_text(value)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def inherited(
    config: ProfilerConfig, given: Collection[tuple[str, ...]]
) -> dict[tuple[str, ...], str]:
    """Return the settings of a config that are neither defaults nor given on the command line.

    Returns:
        The name and value of each as text, by its path in the config.
    """
    found = {}
    for setting in settings():
        section: Any = getattr(config, setting.section) if setting.section else config
        if section is None or setting.path in given or setting.key in NOT_REPORTED:
            continue
        value = getattr(section, setting.key)
        default = type(section).model_fields[setting.key].get_default()
        if setting.section != "watch" and value not in (default, None, [], {}, "all"):
            whole = isinstance(value, float) and value.is_integer()
            text = json.dumps(int(value) if whole else value)
            found[setting.path] = f"{setting.key} {text}"
    return found


StepOn = Annotated[
    str | None,
    typer.Option(
        "--step-on",
        metavar="SOURCE",
        help="What ends a step: optimizer, package.module:function, or a period such as 5s.",
        show_default=False,
    ),
]

OnEvent = Annotated[
    str | None,
    typer.Option(
        "--on-event",
        metavar="COMMAND",
        help="What rank 0 runs at an event, such as a stuck step; it gets JSON on its input.",
        show_default=False,
    ),
]


def check_on_event(on_event: str | None) -> tuple[str, ...]:
    """Return the command for events; exit if there is no such program.

    The environment variable is checked too: without the option, the job's ranks use it.
    """
    try:
        return command_of(None) if on_event is None else split_command("--on-event", on_event)
    except ValueError as error:
        fail(str(error), INVALID)


def check_step_on(step_on: str | None) -> None:
    """Exit if the option, or else the environment variable, names no source of steps."""
    try:
        step_option_of(step_on, otherwise=StepOption("auto"))
    except ValueError as error:
        fail(str(error).replace("steps=", "--step-on ", 1), INVALID)
