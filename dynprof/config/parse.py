"""Parse the bytes of a file into a config, or report all problems at once."""

from __future__ import annotations

import codecs
import contextlib
import difflib
import functools
import itertools
import json
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator, validators
from pydantic import ValidationError

from dynprof.config.file_reading import MAX_BYTES
from dynprof.config.jsontext import Document, join, read_json
from dynprof.config.model import BrokenRules, ProfilerConfig, config_schema
from dynprof.errors import ConfigError, Problem
from dynprof.runtime.plural import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from jsonschema import ValidationError as SchemaViolation

_NAMES = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "null": "null",
    "number": "a number",
    "object": "an object in braces",
    "string": "a string in double quotes",
}
_TYPES: dict[type, tuple[str, ...]] = {
    bool: ("boolean",), int: ("integer", "number"), float: ("number",), str: ("string",),
}  # fmt: skip
_DIGITS = 15
"""Most digits that any pattern of the schema allows in a number."""
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
    said += _located((*_top_level_remarks(config), *_experimental_remarks(config)), document.places)
    return Parsed(config, tuple(said), document.places)


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
    if error.validator == "anyOf" and (inner := _branch_violations(error)):
        for violated in inner:
            yield from _problems_of(violated, placeholders)
        return
    if error.validator != "additionalProperties":
        yield Problem(_violation(error), pointer)
        return
    known = list(error.schema["properties"]) if isinstance(error.schema, dict) else []
    members = error.instance if isinstance(error.instance, dict) else {}
    for key in members:
        if key not in known:
            yield Problem(_unknown_key(key, known), join(pointer, key))


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


def _top_level_remarks(config: ProfilerConfig) -> Iterator[Problem]:
    if config.rank_list and not config.is_rank:
        yield Problem("has no effect: it needs is_rank true, or write it as ranks.", "/rank_list")
    if config.async_mode and not config.analyse:
        yield Problem('has no effect: it needs "analyse": true.', "/async_mode")
    if config.keep != type(config).model_fields["keep"].get_default() and not config.every:
        yield Problem("has no effect: it needs every, the interval of baselines.", "/keep")


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


def _unknown_key(key: str, known: list[str]) -> str:
    """Return the error message for a key that does not exist, or not in this section."""
    if (home := _section_of(key)) is not None:
        place = f'inside "{home}"' if home else "at the top level"
        return f"{show(key)} is in the wrong place; write it {place}."
    near = _near_miss(key, known)
    hint = f'did you mean "{near}"?' if near else f"known here: {', '.join(known)}."
    return f"there is no setting {show(key)}; {hint}"


def _section_of(key: str) -> str | None:
    """Return the section of a setting, empty for the top level; None for an unknown setting."""
    schema = config_schema()
    if key in schema["properties"]:
        return ""
    for name, member in schema["properties"].items():
        options = map(_resolve, (member, *member.get("anyOf", [])))
        if any(key in option.get("properties", {}) for option in options):
            return str(name)
    return None


def _violation(error: SchemaViolation) -> str:
    """Return the error message for a value that its schema does not allow."""
    found = _found(error)
    if most := _most_digits(error):
        return f"{found} has a number that is too large; write at most {counted(most, 'digit')}."
    wanted = _allowed(error.schema if isinstance(error.schema, dict) else {}, error)
    if whole := _integer_meant(error):
        return f"{found} is not allowed; write {whole}, without a decimal point."
    if meant := _quotes_meant(error):
        return f"{found} is not allowed; write {meant}."
    near = _near_miss(error.instance, _choices(error))
    return f"{found} is not allowed; write {wanted}." + (f' Did you mean "{near}"?' if near else "")


def _integer_meant(error: SchemaViolation) -> str:
    """Return the integer to write instead of a float such as 4.0; empty if that is not allowed."""
    value = error.instance
    if not isinstance(value, float) or not value.is_integer():
        return ""
    return str(int(value)) if _allows(error, int(value)) else ""


def _quotes_meant(error: SchemaViolation) -> str:
    """Return what to write for a number or boolean in quotes, or a string without quotes."""
    value = error.instance
    if isinstance(value, str):
        with contextlib.suppress(ValueError, OverflowError, RecursionError):
            meant = json.loads(value)
            if isinstance(meant, (int, float)) and math.isfinite(meant) and _allows(error, meant):
                return f"{show(meant)}, without quotes"
    elif isinstance(value, int) and _allows(error, str(value)):
        return f"{show(str(value))}, in quotes"
    return ""


def _allows(error: SchemaViolation, value: float | str) -> bool:
    """Return whether the schema that a value violates allows another value."""
    schema = error.schema if isinstance(error.schema, dict) else {}
    options = [_resolve(option) for option in schema.get("anyOf", [schema])]
    options = [option for option in options if option.get("type") in _TYPES[type(value)]]
    if isinstance(value, str):
        return any(re.search(option.get("pattern", "(?!)"), value) for option in options)
    return any(
        option.get("minimum", value) <= value <= option.get("maximum", value)
        and option.get("exclusiveMinimum", -math.inf) < value
        for option in options
    )


def _branch_violations(error: SchemaViolation) -> list[SchemaViolation]:
    """Return the violations inside the alternative of an ``anyOf`` that the user meant.

    This is the alternative whose type the value has; the list is empty if there is none.
    """
    schema = error.schema if isinstance(error.schema, dict) else {}
    types = {_resolve(option).get("type") for option in schema.get("anyOf", ())}
    if isinstance(error.instance, str) and "integer" in types:
        return []  # a number may be meant
    branches: dict[Any, list[SchemaViolation]] = {}
    for inner in error.context or []:
        branches.setdefault(inner.schema_path[0], []).append(inner)
    for inners in branches.values():
        if not any(e.validator == "type" and not e.relative_path for e in inners):
            return inners
    return []


def _allowed(schema: dict[str, Any], error: SchemaViolation) -> str:
    """Return what ``schema`` allows, in words."""
    if "anyOf" in schema:
        parts = [_allowed(_resolve(option), error) for option in schema["anyOf"]]
        return " or ".join(dict.fromkeys(parts))
    if "pattern" in schema and "examples" in schema:
        *others, last = map(show, schema["examples"])
        return "a string such as " + " or ".join(filter(None, (", ".join(others), last)))
    if "enum" in schema:
        return "one of " + ", ".join(map(show, _spellings(schema["enum"])))
    if schema.get("type") == "array":
        items = _resolve(schema.get("items", {}))
        inner = f" whose elements are each {_allowed(items, error)}" if items else ""
        return f"a {'non-empty ' if schema.get('minItems') else ''}list{inner}"
    return _NAMES.get(schema.get("type", ""), "another value") + _bounds(schema, error)


def _most_digits(error: SchemaViolation) -> int:
    """Return the most digits allowed in a string's numbers if only that is wrong; else 0."""
    text = error.instance if isinstance(error.instance, str) else ""
    violated = [e for e in (error, *(error.context or [])) if e.validator == "pattern"]
    for most in range(_DIGITS, 0, -1):
        shorter = re.sub(f"([0-9]{{{most}}})[0-9]+", r"\1", text)
        if any(re.search(str(one.validator_value), shorter) for one in violated):
            return most
    return 0


def _found(error: SchemaViolation) -> str:
    instance = error.instance
    if error.validator in ("maxLength", "maxItems") and isinstance(instance, (str, list)):
        return f"a length of {len(instance)}"
    return show(instance)


def _near_miss(word: Any, choices: list[str]) -> str | None:
    """Return the choice that ``word`` probably means, ignoring case."""
    if not isinstance(word, str):
        return None
    if word.upper() == "GPU" and "CUDA" in choices:
        return "CUDA"
    folded = {choice.lower(): choice for choice in reversed(choices)}
    matches = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.6)
    return folded[matches[0]] if matches else None


def show(value: Any) -> str:
    """Return a value as short JSON, without bytes that could move a terminal's cursor."""
    text = json.dumps(value, ensure_ascii=True, default=str).replace("\x7f", "\\u007f")
    return text if len(text) <= 60 else f"{text[:57]}..."


def _bounds(schema: dict[str, Any], error: SchemaViolation) -> str:
    parts = [f"of at least {schema['minimum']}"] if "minimum" in schema else []
    if "exclusiveMinimum" in schema:
        parts.append(f"greater than {schema['exclusiveMinimum']:g}")
    if error.validator in ("maximum", "maxLength", "maxItems"):
        noun = {"maximum": "", "maxLength": "characters ", "maxItems": "elements "}
        parts.append(f"{noun[error.validator]}of at most {error.validator_value}")
    return f" {' and '.join(parts)}" if parts else ""


def _choices(error: SchemaViolation) -> list[str]:
    schema = error.schema if isinstance(error.schema, dict) else {}
    return _spellings([choice for choice in schema.get("enum", []) if isinstance(choice, str)])


def _spellings(choices: list[str]) -> list[str]:
    """Return the choices without lower-case spellings of those that also exist in upper case."""
    return [c for c in choices if c != c.lower() or c.upper() not in choices]


def _resolve(schema: Any) -> dict[str, Any]:
    """Resolve a ``$ref`` into ``$defs``; the config's schema has no other references."""
    if not isinstance(schema, dict):
        return {}
    reference = schema.get("$ref", "")
    if not reference.startswith("#/$defs/"):
        return schema
    resolved: dict[str, Any] = config_schema()["$defs"][reference.removeprefix("#/$defs/")]
    return resolved
