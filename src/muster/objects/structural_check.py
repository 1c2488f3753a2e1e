"""Validation half of `muster.objects.structural`: a schema becomes one function that lists what is wrong with a value.

A `Check` returns None (or nothing) for a value that fits. A problem is (path, reason, message), the path relative to the value
and grown by each container on the way out. Pure.

In Kubernetes' own kinds `TYPE_INVALID` is the reason for whatever Go could not read into the field: besides another JSON type
a number out of its range or with a fraction, and what is no time, no base64 and no quantity.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any

import msgspec

from muster.objects.formats import INTEGER_RANGES, MICRO_TIME, STRING_FORMATS
from muster.objects.regex import TEXT_LEN_MAX, compile_pattern
from muster.objects.rules.metadata import check_embedded
from muster.objects.rules.report import Enough, Report
from muster.objects.schema import EMBEDDED, NULL_IS_ABSENT
from muster.objects.status import Raw, shown
from muster.objects.time import MICRO

Problem = tuple[str, str, str]
Check = Callable[[Any], list[Problem] | None]

INVALID = "FieldValueInvalid"
REQUIRED = "FieldValueRequired"
TYPE_INVALID = "FieldValueTypeInvalid"
NOT_NULL = ", not null"
"""The end of what is said of a null that is none of the values."""
NOT_SUPPORTED = "FieldValueNotSupported"
DUPLICATE = "FieldValueDuplicate"
TOO_LONG = "FieldValueTooLong"
TOO_MANY = "FieldValueTooMany"

_PROBLEMS_MAX = 256
_EXACT = Context(prec=800, traps=[])
"""For all that a double can be: the quotient of two has some 630 digits at the most."""
_READ_BY_GO = frozenset({"date-time", "byte"})
"""Formats of texts that are other types in Go."""


class Rules(msgspec.Struct, frozen=True):
    """What holds for a whole schema, or from one node down."""

    null_is_absent: bool = False
    unique_lists: bool = True
    is_native: bool = False

    def at(self, schema: Raw) -> Rules:
        """The rules from this node on."""
        if NULL_IS_ABSENT not in schema and "x-muster-duplicates-allowed" not in schema:
            return self
        return Rules(
            null_is_absent=schema.get(NULL_IS_ABSENT, self.null_is_absent) is True,
            unique_lists=self.unique_lists and schema.get("x-muster-duplicates-allowed") is not True,
            is_native=self.is_native,
        )


def key_path(key: str) -> str:
    """`.name`, or `[a.b/c]` for a key that would read as several."""
    return f".{key}" if key.replace("_", "a").replace("-", "a").replace("$", "a").isalnum() else f"[{key}]"


def check_of(schema: Raw, rules: Rules) -> Check:
    """The check that `schema` stands for."""
    if _is_word_list(schema):
        return _enum_checks(schema, are_words=True)[0]
    rules = rules.at(schema)
    checks = [*_type_checks(schema, rules), *_enum_checks(schema), *_junctor_checks(schema, rules)]
    checks = [check for check in checks if check is not _anything]
    if not checks:
        return _anything
    check = checks[0] if len(checks) == 1 else _all_of(checks)
    check = _embedded(check) if schema.get(EMBEDDED) is True else check
    if schema.get("nullable") is True:
        return lambda value: None if value is None else check(value)
    return check


def _is_word_list(schema: Raw) -> bool:
    """A string out of a list of strings and nothing else: then being in the list says that the type is right."""
    values = schema.get("enum")
    words = schema.keys() - {"type", "enum", "description", "title", "default", "example"}
    return not words and isinstance(values, list) and schema.get("type") == "string" and all(isinstance(v, str) for v in values)


def _anything(value: Any) -> None:
    return None


def _all_of(checks: Sequence[Check]) -> Check:
    def check(value: Any) -> list[Problem] | None:
        problems: list[Problem] | None = None
        for one in checks:
            found = one(value)
            if found:
                problems = found if problems is None else problems + found
                if any(reason == TYPE_INVALID and not path for path, reason, _ in found):
                    break  # the rest would only say so again
        return problems

    return check


def _type_checks(schema: Raw, rules: Rules) -> list[Check]:
    if schema.get("x-kubernetes-int-or-string") is True:
        return [_int_or_string(schema, rules)]
    kind = schema.get("type")
    by_type: dict[str, Callable[[], Check]] = {
        "object": lambda: _object(schema, rules),
        "array": lambda: _array(schema, rules),
        "string": lambda: _string(schema, rules),
        "integer": lambda: _number(schema, rules, whole=True),
        "number": lambda: _number(schema, rules, whole=False),
        "boolean": lambda: _boolean,
    }
    if kind in by_type:
        return [by_type[kind]()]
    # Without a type, each group of keywords speaks about values of its own type only.
    checks = []
    for words, types, name in (
        (("properties", "additionalProperties", "required", "minProperties", "maxProperties"), dict, "object"),
        (("items", "minItems", "maxItems", "uniqueItems"), list, "array"),
        (("minLength", "maxLength", "pattern", "format"), str, "string"),
        (("minimum", "maximum", "multipleOf"), (int, float), "number"),
    ):
        if any(word in schema for word in words):
            checks.append(_only_for(types, by_type[name]()))
    return checks


def _only_for(types: type | tuple[type, ...], check: Check) -> Check:
    return lambda value: check(value) if isinstance(value, types) and not isinstance(value, bool) else None


def _wrong_type(value: Any, wanted: str) -> list[Problem]:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
    return [
        ("", TYPE_INVALID, f"Invalid value: {shown(value)}: must be of type {wanted}, not {names.get(type(value), 'unknown')}")
    ]


def _boolean(value: Any) -> list[Problem] | None:
    return None if type(value) is bool else _wrong_type(value, "boolean")


# -- objects ----------------------------------------------------------------------------------------------------------------


def _object(schema: Raw, rules: Rules) -> Check:
    properties: Mapping[str, Any] = schema.get("properties") or {}
    children = {name: check_of(inner, rules) for name, inner in properties.items() if isinstance(inner, dict)}
    simple = {name: kind for name, inner in properties.items() if (kind := _simple_type(inner)) is not None}
    extra = schema.get("additionalProperties")
    others = check_of(extra, rules) if isinstance(extra, dict) else _anything
    refuses_others = extra is False
    required = tuple(schema.get("required") or ())
    bounds = _size_check(schema, "minProperties", "maxProperties", "members")
    null_is_absent = rules.null_is_absent

    def check(value: Any) -> list[Problem] | None:
        if type(value) is not dict:
            return _wrong_type(value, "object")
        problems: list[Problem] | None = None
        for key, item in value.items():
            if simple.get(key) is type(item) or (item is None and null_is_absent):
                continue
            child = children.get(key)
            if child is None:
                if refuses_others:
                    problems = _grown(problems, key_path(key), [("", INVALID, f"Invalid value: {shown(item)}: unknown field")])
                    if len(problems) >= _PROBLEMS_MAX:
                        return problems
                    continue
                child = others
            found = child(item)
            if found:
                problems = _grown(problems, key_path(key), found)
                if len(problems) >= _PROBLEMS_MAX:
                    return problems  # more would not be kept
        for name in required:
            if name not in value or (null_is_absent and value[name] is None):
                problems = _grown(problems, key_path(name), [("", REQUIRED, "Required value")])
        if bounds is not None and (found := bounds(value)):
            problems = _grown(problems, "", found)
        return problems

    return check


def _embedded(plain: Check) -> Check:
    """`plain`, and where all types are right what holds for objects inside others."""

    def check(value: Any) -> list[Problem] | None:
        problems = plain(value)
        if type(value) is not dict or any(reason == TYPE_INVALID for _, reason, _ in problems or ()):
            return problems
        report = Report(told_max=_PROBLEMS_MAX)
        with contextlib.suppress(Enough):
            check_embedded(report, value)
        return _grown(problems, "", [(f".{cause.field}", cause.reason, cause.message) for cause in report.causes])

    return check


def _simple_type(schema: Any) -> type | None:
    """str or bool where the type is all that the schema asks: the most common case, checked without a call."""
    if not isinstance(schema, dict):
        return None
    words = schema.keys() - {"type", "description", "title", "default", "nullable", "example", "x-kubernetes-map-type"}
    if words or schema.get("type") not in {"string", "boolean"}:
        return None
    return str if schema["type"] == "string" else bool


def _grown(problems: list[Problem] | None, prefix: str, found: Iterable[Problem]) -> list[Problem]:
    problems = [] if problems is None else problems
    if len(problems) < _PROBLEMS_MAX:
        problems += [(prefix + path, reason, message) for path, reason, message in found]
    return problems


def _size_check(schema: Raw, least_word: str, most_word: str, unit: str) -> Check | None:
    least, most = schema.get(least_word), schema.get(most_word)
    if least is None and most is None:
        return None

    def check(value: Any) -> list[Problem] | None:
        if least is not None and len(value) < least:
            return [("", INVALID, f"Invalid value: {len(value)} {unit}: must have at least {least}")]
        if most is not None and len(value) > most:
            reason = TOO_LONG if unit == "characters" else TOO_MANY
            return [("", reason, f"{'Too long' if unit == 'characters' else 'Too many'}: {len(value)}: at most {most} {unit}")]
        return None

    return check


# -- arrays -----------------------------------------------------------------------------------------------------------------


def _array(schema: Raw, rules: Rules) -> Check:
    items = schema.get("items")
    child = check_of(items, rules) if isinstance(items, dict) else _anything
    bounds = _size_check(schema, "minItems", "maxItems", "items")
    identity = _identity(schema) if rules.unique_lists or schema.get("uniqueItems") is True else None

    def check(value: Any) -> list[Problem] | None:
        if type(value) is not list:
            return _wrong_type(value, "array")
        problems: list[Problem] | None = None
        for index, item in enumerate(value):
            found = child(item)
            if found:
                problems = _grown(problems, f"[{index}]", found)
                if len(problems) >= _PROBLEMS_MAX:
                    return problems  # more would not be kept
        if identity is not None and len(value) > 1 and problems is None:
            problems = _duplicates(value, identity)
        if bounds is not None and (found := bounds(value)):
            problems = _grown(problems, "", found)
        return problems

    return check


def _identity(schema: Raw) -> Callable[[Any], Any] | None:
    """What must differ between the elements of a list; None when they may be alike."""
    list_type = schema.get("x-kubernetes-list-type")
    if list_type == "map":
        keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
        properties = (schema.get("items") or {}).get("properties") or {}
        defaults = {key: properties.get(key, {}).get("default") for key in keys}
        return lambda item: {key: item.get(key, defaults[key]) for key in keys} if isinstance(item, dict) else item
    if list_type == "set" or schema.get("uniqueItems") is True:
        return lambda item: item
    return None


def _duplicates(value: Sequence[Any], identity: Callable[[Any], Any]) -> list[Problem] | None:
    seen: set[bytes] = set()
    problems: list[Problem] | None = None
    for index, item in enumerate(value):
        key = msgspec.json.encode(identity(item), order="deterministic")
        if key in seen:
            problems = _grown(problems, f"[{index}]", [("", DUPLICATE, f"Duplicate value: {shown(identity(item))}")])
            if len(problems) >= _PROBLEMS_MAX:
                return problems
        seen.add(key)
    return problems


# -- scalars ----------------------------------------------------------------------------------------------------------------


def _string(schema: Raw, rules: Rules) -> Check:
    checks: list[Check] = []
    bounds = _size_check(schema, "minLength", "maxLength", "characters")
    if bounds is not None:
        checks.append(bounds)
    if isinstance(schema.get("pattern"), str):
        checks.append(_pattern(schema["pattern"], schema.get("format")))
    known = MICRO_TIME if schema.get(MICRO) is True else STRING_FORMATS.get(str(schema.get("format")))
    if known is not None:
        is_type = rules.is_native and schema["format"] in _READ_BY_GO
        checks.append(_format(*known, TYPE_INVALID if is_type else INVALID))
    rest = checks[0] if len(checks) == 1 else _all_of(checks) if checks else _anything
    return lambda value: rest(value) if type(value) is str else _wrong_type(value, "string")


def _pattern(pattern: str, called: object) -> Check:
    try:
        compiled = compile_pattern(pattern)
    except ValueError:
        return _anything  # `validate_definition` refuses such a schema
    wanted = "be a quantity such as 500m, 1.5Gi or 2e3, and " if called == "quantity" else ""

    def check(value: Any) -> list[Problem] | None:
        if len(value) > TEXT_LEN_MAX:
            return [("", TOO_LONG, f"Too long: {len(value)}: at most {TEXT_LEN_MAX} characters can be matched with a pattern")]
        if compiled.search(value):
            return None
        return [("", INVALID, f"Invalid value: {shown(value)}: must {wanted}match the pattern {pattern}")]

    return check


def _format(is_valid: Callable[[str], bool], called: str, reason: str) -> Check:
    return lambda value: None if is_valid(value) else [("", reason, f"Invalid value: {shown(value)}: must be {called}")]


def _number(schema: Raw, rules: Rules, *, whole: bool) -> Check:
    low, high = INTEGER_RANGES.get(str(schema.get("format")), (None, None)) if whole else (None, None)
    least, most, step = schema.get("minimum"), schema.get("maximum"), schema.get("multipleOf")
    above, below = schema.get("exclusiveMinimum") is True, schema.get("exclusiveMaximum") is True
    if low is not None and high is not None and least is None and most is None and not step:
        return _integer(low, high, str(schema["format"]), is_native=rules.is_native)
    is_strict = whole and rules.is_native

    def check(value: Any) -> list[Problem] | None:
        kind = type(value)
        if kind is not int and (
            kind is not float or not math.isfinite(value) or (whole and (is_strict or not value.is_integer()))
        ):
            return _wrong_type(value, "integer" if whole else "number")
        if is_strict and low is not None and high is not None and not low <= value <= high:
            return _out_of_range(value, low, high, schema["format"], TYPE_INVALID)
        wanted = ""
        if least is not None and (value < least or (above and value == least)):
            wanted = f"must be greater than {'' if above else 'or equal to '}{least}"
        elif most is not None and (value > most or (below and value == most)):
            wanted = f"must be less than {'' if below else 'or equal to '}{most}"
        elif low is not None and high is not None and not low <= value <= high:
            wanted = f"must be between {low} and {high} ({schema['format']})"
        elif step and _EXACT.remainder(Decimal(repr(value)), Decimal(repr(step))) != 0:
            wanted = f"must be a multiple of {step}"
        return [("", INVALID, f"Invalid value: {shown(value)}: {wanted}")] if wanted else None

    return check


def _integer(low: int, high: int, name: str, *, is_native: bool) -> Check:
    def check(value: Any) -> list[Problem] | None:
        if type(value) is int and low <= value <= high:
            return None
        if type(value) is not int and (is_native or type(value) is not float or not value.is_integer()):
            return _wrong_type(value, "integer")
        if low <= value <= high:
            return None
        return _out_of_range(value, low, high, name, TYPE_INVALID if is_native else INVALID)

    return check


def _out_of_range(value: Any, low: int, high: int, name: str, reason: str) -> list[Problem]:
    return [("", reason, f"Invalid value: {shown(value)}: must be between {low} and {high} ({name})")]


def _int_or_string(schema: Raw, rules: Rules) -> Check:
    text = _string({**schema, "type": "string"}, rules)
    number = _number(schema, rules, whole=True)
    takes_fractions = schema.get("format") == "quantity"
    is_type = takes_fractions and rules.is_native

    def check(value: Any) -> list[Problem] | None:
        kind = type(value)
        if kind is str:
            found = text(value)
            return [(path, TYPE_INVALID, message) for path, _, message in found] if found and is_type else found
        if kind is int:
            return number(value)
        if kind is float and math.isfinite(value) and (takes_fractions or value.is_integer()):
            return None
        return _wrong_type(value, "quantity (string or number)" if takes_fractions else "integer or string")

    return check


# -- any type ---------------------------------------------------------------------------------------------------------------


def _enum_checks(schema: Raw, *, are_words: bool = False) -> list[Check]:
    """`are_words`: no other check says that anything but a text is of the wrong type."""
    values = schema.get("enum")
    if not isinstance(values, list):
        return []
    # 1 is 1.0, and true is not 1.
    known = {(isinstance(value, bool), value) for value in values if not isinstance(value, dict | list)}
    others = [value for value in values if isinstance(value, dict | list)]
    allowed = ", ".join(shown(value) for value in values[:20]) + (", ..." if len(values) > 20 else "")

    def check(value: Any) -> list[Problem] | None:
        if isinstance(value, dict | list):
            if value in others:
                return None
        elif (isinstance(value, bool), value) in known:
            return None
        if are_words and type(value) is not str:
            return _wrong_type(value, "string")
        return [("", NOT_SUPPORTED, f"Unsupported value: {shown(value)}: supported values: {allowed}")]

    return [check]


def _junctor_checks(schema: Raw, rules: Rules) -> list[Check]:
    checks: list[Check] = []
    if isinstance(schema.get("allOf"), list):
        checks.extend(check_of(part, rules) for part in schema["allOf"] if isinstance(part, dict))
    if isinstance(schema.get("anyOf"), list) and not _is_said_twice(schema):
        checks.append(_some_of([check_of(p, rules) for p in schema["anyOf"] if isinstance(p, dict)], only_one=False))
    if isinstance(schema.get("oneOf"), list):
        checks.append(_some_of([check_of(p, rules) for p in schema["oneOf"] if isinstance(p, dict)], only_one=True))
    if isinstance(schema.get("not"), dict):
        checks.append(_none_of(check_of(schema["not"], rules)))
    return checks


def _is_said_twice(schema: Raw) -> bool:
    """`x-kubernetes-int-or-string` with the union that it stands for, as generators of definitions write it."""
    return schema.get("x-kubernetes-int-or-string") is True and schema["anyOf"] == [{"type": "integer"}, {"type": "string"}]


def _some_of(options: Sequence[Check], *, only_one: bool) -> Check:
    word = "exactly one of the alternatives (oneOf)" if only_one else "at least one of the alternatives (anyOf)"

    def check(value: Any) -> list[Problem] | None:
        results: list[list[Problem]] = []
        for option in options:
            found = option(value)
            if not found and not only_one:
                return None
            results.append(found or [])
        fitting = sum(not result for result in results)
        if fitting == 1 or not options:
            return None
        if fitting:
            return [("", INVALID, f"Invalid value: {shown(value)}: must fit {word}, and fits {fitting}")]
        nearest = min(results, key=len)[0]
        hint = f"; nearest: {nearest[0].removeprefix('.') + ': ' if nearest[0] else ''}{nearest[2]}"
        return [("", INVALID, f"Invalid value: {shown(value)}: must fit {word}{hint}")]

    return check


def _none_of(inner: Check) -> Check:
    return lambda value: (
        None if inner(value) else [("", INVALID, f"Invalid value: {shown(value)}: must not fit the schema under `not`")]
    )
