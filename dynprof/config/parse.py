"""Parse the bytes of a file into a config, or report all problems at once."""

from __future__ import annotations

import codecs
import functools
import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator, validators
from pydantic import ValidationError

from dynprof.config.file_reading import MAX_BYTES
from dynprof.config.jsontext import Document, join, read_json
from dynprof.config.messages import branch_violations, show, unknown_key, violation
from dynprof.config.model import BrokenRules, ProfilerConfig
from dynprof.config.schema import config_schema
from dynprof.errors import ConfigError, Problem
from dynprof.runtime.plural import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from jsonschema import ValidationError as SchemaViolation

MAX_PROBLEMS = 50
"""Number of problems that are listed; the rest is only counted."""
MAX_CHECKED = 500
"""Number of schema problems after which the check stops."""
_IGNORABLE = "/experimental_config/export_type"
"""A wrong value here is only a remark: tables can be made from the trace later, in any format.

Ascend's profiler takes text in this case, too.
"""


@dataclass(frozen=True)
class Parsed:
    """A valid config, with remarks about it.

    Attributes:
        config: The config.
        remarks: Settings that have no effect because of another setting, and a byte order mark.
        places: Line and column by JSON pointer, for later remarks.
    """

    config: ProfilerConfig
    remarks: tuple[Problem, ...]
    places: dict[str, tuple[int, int]]

    def locate(self, problems: Iterable[Problem]) -> tuple[Problem, ...]:
        """Return the problems with line and column added to those that only have a pointer."""
        return tuple(_located(problems, self.places))


def parse_config(raw: bytes) -> Parsed:
    """Parse a config; check it against the schema, then against the rules between its fields.

    Raises:
        ConfigError: The config is invalid; the error has all problems with JSON pointer and line.
    """
    text, has_mark = _decode(raw)
    document = read_json(text)
    found = itertools.islice(_schema_problems(document), MAX_CHECKED)
    problems = list(dict.fromkeys((*document.problems, *_located(found, document.places))))
    ignored = [problem for problem in problems if problem.pointer.startswith(_IGNORABLE)]
    if len(problems) > len(ignored):
        raise ConfigError(_first(sorted(problems, key=lambda p: (p.line, p.column))))
    try:
        config = ProfilerConfig.model_validate(_without_ignored(document.value, ignored))
    except ValidationError as error:
        raise ConfigError(_model_problems(error, document.places)) from None
    said = [Problem("the file begins with a byte order mark; it was skipped.")] if has_mark else []
    said += [replace(one, text=f"{one.text} Until then, text is used.") for one in ignored]
    return Parsed(config, (*said, *_located(remarks(config), document.places)), document.places)


def _without_ignored(value: Any, ignored: list[Problem]) -> Any:
    """Return the value of a file without an invalid setting that is only worth a remark."""
    if not ignored:
        return value
    inner = {
        key: said for key, said in value["experimental_config"].items() if key != "export_type"
    }
    return {**value, "experimental_config": inner}


def _decode(raw: bytes) -> tuple[str, bool]:
    if len(raw) > MAX_BYTES:
        raise ConfigError([Problem("the config is larger than 1 MiB; it was not read.")])
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ConfigError([Problem("the file is saved as UTF-16; save it as UTF-8.")])
    has_mark = raw.startswith(codecs.BOM_UTF8)
    body = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return body.decode("utf-8"), has_mark
    except UnicodeDecodeError as error:
        line = body.count(b"\n", 0, error.start) + 1
        column = error.start - body.rfind(b"\n", 0, error.start)
        text = f"byte 0x{body[error.start]:02x} is not UTF-8; save the file as UTF-8."
        raise ConfigError([Problem(text, "", line, column)]) from None


@functools.cache
def _validator() -> Draft202012Validator:
    # 1.0 is an integer for the schema but not for the model, which would report it only at the end.
    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_whole)
    strict: type[Draft202012Validator] = validators.extend(  # type: ignore[no-untyped-call]
        Draft202012Validator, type_checker=types
    )
    return strict(config_schema())


def _is_whole(_: object, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _schema_problems(document: Document) -> Iterator[Problem]:
    value = document.value
    if "" in document.placeholders:
        return
    if not isinstance(value, dict):
        yield Problem(f"{show(value)} is not a config; write an object in braces.")
        return
    for error in _validator().iter_errors(value):
        yield from _problems_of(error, document.placeholders)


def _problems_of(error: SchemaViolation, placeholders: Collection[str]) -> Iterator[Problem]:
    """Yield the problems of a violation, except for placeholders, which have a problem already."""
    pointer = functools.reduce(join, error.absolute_path, "")
    if pointer in placeholders:
        return
    if error.validator == "anyOf" and (inner := branch_violations(error)):
        for violated in inner:
            yield from _problems_of(violated, placeholders)
        return
    if error.validator != "additionalProperties":
        yield Problem(violation(error), pointer)
        return
    known = list(error.schema["properties"]) if isinstance(error.schema, dict) else []
    members = error.instance if isinstance(error.instance, dict) else {}
    for key in members:
        if key not in known:
            yield Problem(unknown_key(key, known), join(pointer, key))


def _model_problems(
    error: ValidationError, places: dict[str, tuple[int, int]]
) -> Iterator[Problem]:
    """Yield what the schema allows and the model does not: broken rules between fields."""
    entries = error.errors(include_url=False)
    # If an element of a list is wrong, "not a string" belongs to the other alternative: drop it.
    named = [entry for entry in entries if not isinstance(entry["input"], list)]
    for entry in named or entries:
        cause = entry.get("ctx", {}).get("error")
        if isinstance(cause, BrokenRules):
            yield from _located(cause.problems, places)
            continue
        pointer = _nearest(functools.reduce(join, entry["loc"], ""), places)
        text = f"{show(entry['input'])} is not allowed: {entry['msg']}."
        yield Problem(text, pointer, *places.get(pointer, (0, 0)))


def _nearest(pointer: str, places: dict[str, tuple[int, int]]) -> str:
    """Return ``pointer``, or its nearest parent that the file has."""
    while pointer and pointer not in places:
        pointer = pointer.rpartition("/")[0]
    return pointer


def _located(problems: Iterable[Problem], places: dict[str, tuple[int, int]]) -> Iterator[Problem]:
    for problem in problems:
        if problem.line:
            yield problem
            continue
        place = places[_nearest(problem.pointer, places)] if problem.pointer else (0, 0)
        yield Problem(problem.text, problem.pointer, *place)


def _first(problems: list[Problem]) -> list[Problem]:
    if len(problems) <= MAX_PROBLEMS:
        return problems
    least = "at least " if len(problems) >= MAX_CHECKED else ""
    rest = Problem(f"and {least}{counted(len(problems) - MAX_PROBLEMS, 'more problem')}.")
    return [*problems[:MAX_PROBLEMS], rest]


def remarks(config: ProfilerConfig) -> list[Problem]:
    """Return settings without effect because of another one (the vendor drops them too)."""
    return [*_top_level_remarks(config), *_experimental_remarks(config)]


def _top_level_remarks(config: ProfilerConfig) -> Iterator[Problem]:
    if config.rank_list and not config.is_rank:
        yield Problem("has no effect: it needs is_rank true, or write it as ranks.", "/rank_list")
    if config.async_mode and not config.analyse:
        yield Problem('has no effect: it needs "analyse": true.', "/async_mode")


def _experimental_remarks(config: ProfilerConfig) -> Iterator[Problem]:
    settings = config.experimental
    here = "/experimental_config"
    if settings.op_attr and "db" not in settings.export_types:
        yield Problem('has no effect: it needs "export_type": "db".', f"{here}/op_attr")
    if settings.aic_metrics != "AiCoreNone" and settings.profiler_level not in ("Level1", "Level2"):
        text = 'has no effect: it needs "profiler_level": "Level1" or "Level2".'
        yield Problem(text, f"{here}/aic_metrics")
    if settings.marks_only and not (settings.mstx or settings.msprof_tx):
        text = 'Level_none records only marks; "mstx": true is used with it.'
        yield Problem(text, f"{here}/profiler_level")
    domains = settings.mstx_domain_include or settings.mstx_domain_exclude
    if domains and not settings.marks:
        name = "mstx_domain_include" if settings.mstx_domain_include else "mstx_domain_exclude"
        yield Problem('has no effect: it needs "mstx": true.', f"{here}/{name}")
    if settings.mstx_domain_include and settings.mstx_domain_exclude:
        text = "has no effect: mstx_domain_include is set too and takes precedence."
        yield Problem(text, f"{here}/mstx_domain_exclude")
