"""Error messages for violations of the schema: what was found, and what is allowed."""

from __future__ import annotations

import contextlib
import difflib
import json
import math
import re
from typing import TYPE_CHECKING, Any

from dynprof.config.schema import config_schema
from dynprof.runtime.plural import counted

if TYPE_CHECKING:
    from jsonschema import ValidationError

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


def unknown_key(key: str, known: list[str]) -> str:
    """Return the error message for a key that does not exist, or not in this section."""
    if (home := _section_of(key)) is not None:
        place = f'inside "{home}"' if home else "at the top level"
        return f"{show(key)} is in the wrong place; write it {place}."
    near = near_miss(key, known)
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


def violation(error: ValidationError) -> str:
    """Return the error message for a value that its schema does not allow."""
    found = _found(error)
    if most := _most_digits(error):
        return f"{found} has a number that is too large; write at most {counted(most, 'digit')}."
    wanted = allowed(error.schema if isinstance(error.schema, dict) else {}, error)
    if whole := _integer_meant(error):
        return f"{found} is not allowed; write {whole}, without a decimal point."
    if meant := _quotes_meant(error):
        return f"{found} is not allowed; write {meant}."
    near = near_miss(error.instance, _choices(error))
    return f"{found} is not allowed; write {wanted}." + (f' Did you mean "{near}"?' if near else "")


def _integer_meant(error: ValidationError) -> str:
    """Return the integer to write instead of a float such as 4.0; empty if that is not allowed."""
    value = error.instance
    if not isinstance(value, float) or not value.is_integer():
        return ""
    return str(int(value)) if _allows(error, int(value)) else ""


def _quotes_meant(error: ValidationError) -> str:
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


def _allows(error: ValidationError, value: float | str) -> bool:
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


def branch_violations(error: ValidationError) -> list[ValidationError]:
    """Return the violations inside the alternative of an ``anyOf`` that the user meant.

    This is the alternative whose type the value has; the list is empty if there is none.
    """
    schema = error.schema if isinstance(error.schema, dict) else {}
    types = {_resolve(option).get("type") for option in schema.get("anyOf", ())}
    if isinstance(error.instance, str) and "integer" in types:
        return []  # a number may be meant
    branches: dict[Any, list[ValidationError]] = {}
    for inner in error.context or []:
        branches.setdefault(inner.schema_path[0], []).append(inner)
    for inners in branches.values():
        if not any(e.validator == "type" and not e.relative_path for e in inners):
            return inners
    return []


def allowed(schema: dict[str, Any], error: ValidationError) -> str:
    """Return what ``schema`` allows, in words."""
    if "anyOf" in schema:
        parts = [allowed(_resolve(option), error) for option in schema["anyOf"]]
        return " or ".join(dict.fromkeys(parts))
    if "pattern" in schema and "examples" in schema:
        *others, last = map(show, schema["examples"])
        return "a string such as " + " or ".join(filter(None, (", ".join(others), last)))
    if "enum" in schema:
        return "one of " + ", ".join(map(show, _spellings(schema["enum"])))
    if schema.get("type") == "array":
        items = _resolve(schema.get("items", {}))
        inner = f" whose elements are each {allowed(items, error)}" if items else ""
        return f"a {'non-empty ' if schema.get('minItems') else ''}list{inner}"
    return _NAMES.get(schema.get("type", ""), "another value") + _bounds(schema, error)


def _most_digits(error: ValidationError) -> int:
    """Return the most digits allowed in a string's numbers if only that is wrong; else 0."""
    text = error.instance if isinstance(error.instance, str) else ""
    violated = [e for e in (error, *(error.context or [])) if e.validator == "pattern"]
    for most in range(_DIGITS, 0, -1):
        shorter = re.sub(f"([0-9]{{{most}}})[0-9]+", r"\1", text)
        if any(re.search(str(one.validator_value), shorter) for one in violated):
            return most
    return 0


def _found(error: ValidationError) -> str:
    instance = error.instance
    if error.validator in ("maxLength", "maxItems") and isinstance(instance, (str, list)):
        return f"a length of {len(instance)}"
    return show(instance)


def near_miss(word: Any, choices: list[str]) -> str | None:
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


def _bounds(schema: dict[str, Any], error: ValidationError) -> str:
    parts = [f"of at least {schema['minimum']}"] if "minimum" in schema else []
    if "exclusiveMinimum" in schema:
        parts.append(f"greater than {schema['exclusiveMinimum']:g}")
    if error.validator in ("maximum", "maxLength", "maxItems"):
        noun = {"maximum": "", "maxLength": "characters ", "maxItems": "elements "}
        parts.append(f"{noun[error.validator]}of at most {error.validator_value}")
    return f" {' and '.join(parts)}" if parts else ""


def _choices(error: ValidationError) -> list[str]:
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
