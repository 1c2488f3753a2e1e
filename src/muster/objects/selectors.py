"""Label and field selectors: what `-l` and `--field-selector` mean, and the `LabelSelector` inside objects.

Text is parsed once into an immutable query and matched many times. Parse errors are ValueErrors that name the position.
Whoever may list may send thousands of conditions, and each is asked of each object; so many of them are folded into one for
each label or field, and an object is asked about no more of them than it has labels.

Pure. Invariant: `parse_label_selector(str(q)) == q` for every query that was parsed or built here, likewise for fields.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, NoReturn

import msgspec

from muster.objects.names import validate_label_key, validate_label_value
from muster.objects.view import View

_TEXT_LEN_MAX: Final = 64 * 1024
_FEW: Final = 8
"""Conditions that are asked one by one; of more, the folded form is made."""
_CACHED_LEN_MAX: Final = 512
_INT64_MAX: Final = 2**63 - 1


class LabelSelectorRequirement(View):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = msgspec.field(default_factory=list)


class LabelSelector(View):
    """A selector as objects carry it. All of its parts must hold; an empty one selects everything."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: list[LabelSelectorRequirement] = msgspec.field(default_factory=list)


class Operator(enum.Enum):
    EQUALS = "="
    NOT_EQUALS = "!="
    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    ABSENT = "!"
    GREATER = ">"
    LESS = "<"


class Requirement(msgspec.Struct, frozen=True):
    """One condition on one label."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case Operator.EQUALS | Operator.IN:
                return value is not None and value in self.values
            case Operator.NOT_EQUALS | Operator.NOT_IN:
                return value is None or value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.ABSENT:
                return value is None
            case Operator.GREATER:
                number = _integer(value)
                return number is not None and number > self.bound()
            case Operator.LESS:
                number = _integer(value)
                return number is not None and number < self.bound()

    def bound(self) -> int:
        """The number that GREATER and LESS compare with."""
        (text,) = self.values
        return int(text)

    def __str__(self) -> str:
        match self.operator:
            case Operator.EXISTS:
                return self.key
            case Operator.ABSENT:
                return f"!{self.key}"
            case Operator.IN | Operator.NOT_IN:
                return f"{self.key} {self.operator.value} ({','.join(sorted(self.values))})"
        (text,) = self.values
        return f"{self.key}{self.operator.value}{text}"


class _Folded:
    """All conditions on one label together: what its value may be if it is there, and whether it must be or must not be."""

    __slots__ = ("allowed", "is_absent", "is_needed", "range", "refused")

    def __init__(self, requirements: Iterable[Requirement]) -> None:
        self.allowed: frozenset[str] | None = None
        self.refused: frozenset[str] = frozenset()
        self.is_needed = self.is_absent = False
        above: list[int] = []
        below: list[int] = []
        refused: set[str] = set()
        for requirement in requirements:
            match requirement.operator:
                case Operator.EQUALS | Operator.IN:
                    self.allowed = requirement.values if self.allowed is None else self.allowed & requirement.values
                case Operator.NOT_EQUALS | Operator.NOT_IN:
                    refused |= requirement.values
                    continue
                case Operator.ABSENT:
                    self.is_absent = True
                    continue
                case Operator.GREATER:
                    above.append(requirement.bound())
                case Operator.LESS:
                    below.append(requirement.bound())
            self.is_needed = True
        self.refused = frozenset(refused)
        self.range = (max(above, default=None), min(below, default=None))

    def takes(self, value: str) -> bool:
        """Whether the label may be there with this value."""
        if self.is_absent or value in self.refused or (self.allowed is not None and value not in self.allowed):
            return False
        above, below = self.range
        if above is None and below is None:
            return True
        number = _integer(value)
        return number is not None and (above is None or number > above) and (below is None or number < below)


class LabelQuery(msgspec.Struct, frozen=True, dict=True):
    """Conditions that must all hold, in the order of their keys."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        if len(self.requirements) <= _FEW:
            return all(requirement.matches(labels) for requirement in self.requirements)
        needed, others = self._folded
        if len(needed) > len(labels):
            return False
        if not all(key in labels and folded.takes(labels[key]) for key, folded in needed.items()):
            return False
        return all(others[key].takes(value) for key, value in labels.items() if key in others)

    @functools.cached_property
    def _folded(self) -> tuple[dict[str, _Folded], dict[str, _Folded]]:
        """By label: those that must be there, and those that need not be."""
        by_key: dict[str, list[Requirement]] = {}
        for requirement in self.requirements:
            by_key.setdefault(requirement.key, []).append(requirement)
        folded = {key: _Folded(requirements) for key, requirements in by_key.items()}
        return (
            {key: one for key, one in folded.items() if one.is_needed},
            {key: one for key, one in folded.items() if not one.is_needed},
        )

    @property
    def is_everything(self) -> bool:
        return not self.requirements

    def exact(self) -> dict[str, str]:
        """Labels that anything selected has with just this value: what an index can be asked for."""
        found: dict[str, str] = {}
        for requirement in self.requirements:
            if requirement.operator in (Operator.EQUALS, Operator.IN) and len(requirement.values) == 1:
                (found[requirement.key],) = requirement.values
        return found

    def __str__(self) -> str:
        return ",".join(str(requirement) for requirement in self.requirements)


EVERYTHING: Final = LabelQuery()
NOTHING: Final = LabelQuery((Requirement("none", Operator.EXISTS), Requirement("none", Operator.ABSENT)))
"""Contradicts itself, so that it also selects nothing when it is sent as text."""


def label_query(requirements: list[Requirement]) -> LabelQuery:
    return LabelQuery(tuple(sorted(requirements, key=lambda r: (r.key, r.operator.value, sorted(r.values)))))


def from_labels(labels: Mapping[str, str]) -> LabelQuery:
    """Selects what has all of `labels`."""
    return label_query([_requirement(key, Operator.EQUALS, {value}) for key, value in labels.items()])


def from_label_selector(selector: LabelSelector | None) -> LabelQuery:
    """As Kubernetes reads it: no selector selects nothing, an empty one everything. ValueError names the part that is wrong."""
    if selector is None:
        return NOTHING
    requirements = [_requirement(key, Operator.EQUALS, {value}, "matchLabels") for key, value in selector.match_labels.items()]
    operators = {"In": Operator.IN, "NotIn": Operator.NOT_IN, "Exists": Operator.EXISTS, "DoesNotExist": Operator.ABSENT}
    for index, expression in enumerate(selector.match_expressions):
        where = f"matchExpressions[{index}]"
        requirements.append(_requirement(expression.key, operators[expression.operator], set(expression.values), where))
    return label_query(requirements)


def parse_label_selector(text: str) -> LabelQuery:
    """Reads `a=b,a==b,a!=b,a in (x,y),a notin (x),a,!a,a>1,a<9`. Empty text selects everything."""
    if len(text) > _TEXT_LEN_MAX:
        raise ValueError(f"a label selector may have {_TEXT_LEN_MAX} characters; this one has {len(text)}")
    return _label_query_cached(text) if len(text) <= _CACHED_LEN_MAX else _LabelParser(text).query()


@functools.lru_cache(maxsize=1024)
def _label_query_cached(text: str) -> LabelQuery:
    return _LabelParser(text).query()


def _requirement(key: str, operator: Operator, values: set[str], where: str = "label selector") -> Requirement:
    for problem in validate_label_key(key):
        raise ValueError(f"{where}: key {key[:80]!r} {problem}")
    for value in sorted(values):
        for problem in validate_label_value(value):
            raise ValueError(f"{where}: value {value[:80]!r} of {key!r} {problem}")
    if operator in (Operator.IN, Operator.NOT_IN) and not values:
        raise ValueError(f"{where}: {key!r} needs at least one value for {operator.value!r}")
    if operator in (Operator.EXISTS, Operator.ABSENT) and values:
        raise ValueError(f"{where}: {key!r} takes no values when only its presence is asked for")
    if operator in (Operator.GREATER, Operator.LESS):
        for value in values:
            if _integer(value) is None:
                raise ValueError(f"{where}: {key!r} {operator.value} needs a whole number, not {value!r}")
    return Requirement(key, operator, frozenset(values))


_DIGITS: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


def _integer(text: str | None) -> int | None:
    """The 64-bit number that a label's value spells, if it does."""
    if text is None or not _DIGITS.fullmatch(text):
        return None
    number = int(text)
    return number if -_INT64_MAX - 1 <= number <= _INT64_MAX else None


_TOKENS: Final = re.compile(r"[ \t\r\n]+|==|!=|[=!(),<>]|[^ \t\r\n=!(),<>]+")
_SYMBOLS: Final = frozenset(["==", "!=", "=", "!", "(", ")", ",", "<", ">"])


class _LabelParser:
    """Recursive descent without recursion: requirements in a row, each a key and what may follow it."""

    def __init__(self, text: str) -> None:
        self._tokens = [(m.start(), m[0]) for m in _TOKENS.finditer(text) if not m[0].isspace()]
        self._tokens.append((len(text), ""))
        self._at = 0

    def query(self) -> LabelQuery:
        return label_query(self._all())

    def _all(self) -> list[Requirement]:
        found: list[Requirement] = []
        if self._peek() == "":
            return found
        while True:
            found.append(self._one())
            if self._peek() == "":
                return found
            if self._peek() != ",":
                self._fail("',' or the end")
            self._at += 1

    def _one(self) -> Requirement:
        absent = self._peek() == "!"
        if absent:
            self._at += 1
        position = self._tokens[self._at][0]
        key = self._word("a label key")
        following = self._peek()
        if absent:
            return self._made(position, key, Operator.ABSENT, set())
        if following in ("", ","):
            return self._made(position, key, Operator.EXISTS, set())
        self._at += 1
        match following:
            case "=" | "==":
                return self._made(position, key, Operator.EQUALS, {self._value()})
            case "!=":
                return self._made(position, key, Operator.NOT_EQUALS, {self._value()})
            case ">":
                return self._made(position, key, Operator.GREATER, {self._value()})
            case "<":
                return self._made(position, key, Operator.LESS, {self._value()})
            case "in":
                return self._made(position, key, Operator.IN, self._values())
            case "notin":
                return self._made(position, key, Operator.NOT_IN, self._values())
        self._at -= 1
        self._fail("=, ==, !=, <, >, in, notin, ',' or the end")

    def _made(self, position: int, key: str, operator: Operator, values: set[str]) -> Requirement:
        return _requirement(key, operator, values, f"label selector at position {position}")

    def _value(self) -> str:
        """One value; nothing at all stands for the empty one."""
        return "" if self._peek() in ("", ",") else self._word("a value")

    def _values(self) -> set[str]:
        """`(a,b)`; an empty place between commas or parentheses is the empty value."""
        if self._peek() != "(":
            self._fail("'('")
        self._at += 1
        values: set[str] = set()
        while True:
            values.add("" if self._peek() in (",", ")") else self._word("a value, ',' or ')'"))
            if self._peek() not in (",", ")"):
                self._fail("',' or ')'")
            self._at += 1
            if self._tokens[self._at - 1][1] == ")":
                return values

    def _word(self, wanted: str) -> str:
        word = self._peek()
        if word == "" or word in _SYMBOLS:
            self._fail(wanted)
        self._at += 1
        return word

    def _peek(self) -> str:
        return self._tokens[self._at][1]

    def _fail(self, wanted: str) -> NoReturn:
        position, found = self._tokens[self._at]
        shown = repr(found[:80]) if found else "the end"
        raise ValueError(f"label selector at position {position}: expected {wanted}, found {shown}")


class FieldTerm(msgspec.Struct, frozen=True):
    """One condition on one field: its text is, or is not, `value`."""

    field: str
    value: str
    negated: bool = False

    def __str__(self) -> str:
        escaped = re.sub(r"[\\,=]", r"\\\g<0>", self.value)
        return f"{self.field}{'!=' if self.negated else '='}{escaped}"


class FieldQuery(msgspec.Struct, frozen=True, dict=True):
    """Conditions that must all hold."""

    terms: tuple[FieldTerm, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(term.field for term in self.terms)

    @property
    def is_everything(self) -> bool:
        return not self.terms

    def matches(self, getter: Callable[[str], str]) -> bool:
        """`getter` gives a field's text, empty when the object has none."""
        if len(self.terms) <= _FEW:
            return all((getter(term.field) == term.value) is not term.negated for term in self.terms)
        return all(
            (value := getter(field)) not in refused and (not wanted or wanted == {value})
            for field, (wanted, refused) in self._folded.items()
        )

    @functools.cached_property
    def _folded(self) -> dict[str, tuple[set[str], set[str]]]:
        """By field: the values that it must have, and those that it must not. Two that it must have are one too many."""
        folded: dict[str, tuple[set[str], set[str]]] = {}
        for term in self.terms:
            folded.setdefault(term.field, (set(), set()))[term.negated].add(term.value)
        return folded

    def exact(self, field: str) -> str | None:
        """The one value that `field` must have, if the query says so: `metadata.name=x` is a get, not a scan."""
        return next((term.value for term in self.terms if term.field == field and not term.negated), None)

    def first_exact(self) -> tuple[str, str] | None:
        """The first field that must have one value, and that value."""
        return next(((term.field, term.value) for term in self.terms if not term.negated), None)

    def __str__(self) -> str:
        return ",".join(str(term) for term in self.terms)


_ESCAPED_SPLIT: Final = re.compile(r"((?:\\.|[^\\,])*)(,|\Z)", re.DOTALL)
_FIELD_TERM: Final = re.compile(r"([^=!\\]+?)(!=|==|=)((?:\\[\\,=]|[^\\=,])*)", re.DOTALL)


def parse_field_selector(text: str) -> FieldQuery:
    """Reads `metadata.name=a,status.phase!=Running`; in values `\\`, `,` and `=` are written with a backslash before them."""
    if len(text) > _TEXT_LEN_MAX:
        raise ValueError(f"a field selector may have {_TEXT_LEN_MAX} characters; this one has {len(text)}")
    return _field_query_cached(text) if len(text) <= _CACHED_LEN_MAX else _parse_fields(text)


@functools.lru_cache(maxsize=1024)
def _field_query_cached(text: str) -> FieldQuery:
    return _parse_fields(text)


def _parse_fields(text: str) -> FieldQuery:
    terms: list[FieldTerm] = []
    position = 0
    while position < len(text):
        split = _ESCAPED_SPLIT.match(text, position)
        if split is None:
            raise ValueError(f"field selector at position {position}: a backslash must stand before \\, ',' or '='")
        term = split[1]
        if term:
            match = _FIELD_TERM.fullmatch(term)
            if match is None:
                raise ValueError(
                    f"field selector at position {position}: {term[:80]!r} is not field=value, field==value or field!=value "
                    "(write \\, ',' and '=' in a value with a backslash before them)"
                )
            terms.append(FieldTerm(match[1], re.sub(r"\\([\\,=])", r"\1", match[3]), negated=match[2] == "!="))
        position = split.end()
    return FieldQuery(tuple(terms))
