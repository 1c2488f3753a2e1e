"""Collecting what is wrong with an object, in Kubernetes' words, and reading raw objects without trusting them.

Rules run after the schema has passed, so types are right where it matters; the readers here make a wrong one read as empty all
the same, because a rule must never crash. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from muster.objects.names import validate_label_key, validate_label_value, validate_qualified_name
from muster.objects.quantity import Quantity
from muster.objects.status import Cause, Raw, shown

CAUSES_KEPT_MAX = 1_000
"""More are not kept: the object is refused all the same, and a manifest of a megabyte can have very many."""
NAMES_SHOWN_MAX = 12
_NAME_SHOWN_LEN_MAX = 80


def listed(names: Sequence[str], none: str = "none") -> str:
    """`names` as a message lists what there is: a few of them, none of them long."""
    if not names:
        return none
    words = [
        name if len(name) <= _NAME_SHOWN_LEN_MAX else f"{name[: _NAME_SHOWN_LEN_MAX - 3]}..."
        for name in names[:NAMES_SHOWN_MAX]
    ]
    more = len(names) - len(words)
    return ", ".join(words) + (f" and {more} more" if more > 0 else "")


class Enough(Exception):
    """As many causes were found as are told: no fault, but the end of the search."""


class Report:
    """The causes found so far.

    With `told_max`, `Enough` is raised as soon as there are that many: nobody hears of more, so nobody need look for them.
    """

    def __init__(self, told_max: int | None = None) -> None:
        self.causes: list[Cause] = []
        self._told_max = told_max

    def _add(self, cause: Cause) -> None:
        if len(self.causes) < CAUSES_KEPT_MAX:
            self.causes.append(cause)
        if self._told_max is not None and len(self.causes) >= self._told_max:
            raise Enough

    @property
    def is_full(self) -> bool:
        """Whether what is found now is not kept: then it need not be put into words."""
        return len(self.causes) >= CAUSES_KEPT_MAX

    def invalid(self, field: str, value: Any, message: str) -> None:
        if not self.is_full:
            self._add(Cause(field=field, message=f"Invalid value: {shown(value)}: {message}"))

    def required(self, field: str, message: str = "") -> None:
        self._add(
            Cause(
                field=field, message=f"Required value: {message}" if message else "Required value", reason="FieldValueRequired"
            )
        )

    def forbidden(self, field: str, message: str) -> None:
        self._add(Cause(field=field, message=f"Forbidden: {message}", reason="FieldValueForbidden"))

    def not_found(self, field: str, value: Any) -> None:
        self._add(Cause(field=field, message=f"Not found: {shown(value)}", reason="FieldValueNotFound"))

    def duplicate(self, field: str, value: Any) -> None:
        self._add(Cause(field=field, message=f"Duplicate value: {shown(value)}", reason="FieldValueDuplicate"))

    def unsupported(self, field: str, value: Any, allowed: Iterable[str]) -> None:
        words = ", ".join(f'"{word}"' for word in allowed)
        message = f"Unsupported value: {shown(value)}: supported values: {words}"
        self._add(Cause(field=field, message=message, reason="FieldValueNotSupported"))

    def too_long(self, field: str, message: str) -> None:
        self._add(Cause(field=field, message=f"Too long: {message}", reason="FieldValueTooLong"))

    def too_many(self, field: str, count: int, most: int) -> None:
        message = f"Too many: {count}: must have at most {most} items"
        self._add(Cause(field=field, message=message, reason="FieldValueTooMany"))

    def immutable(self, field: str, value: Any) -> None:
        self.invalid(field, value, "field is immutable")

    def names(self, field: str, value: Any, problems: Iterable[str]) -> None:
        """The outcome of a `validate_*` function about a text."""
        for problem in problems:
            self.invalid(field, value, problem)


def obj(parent: Any, key: str) -> Raw:
    """The object under `key`; empty when there is none."""
    value = parent.get(key) if isinstance(parent, dict) else None
    return value if isinstance(value, dict) else {}


def objs(parent: Any, key: str, path: str, but: Callable[[Raw], bool] | None = None) -> Sequence[tuple[str, Raw]]:
    """The objects in the list under `key`, each with its path; not those of which `but` says that there is nothing to see."""
    value = parent.get(key) if isinstance(parent, dict) else None
    if not value or not isinstance(value, list):
        return ()
    stem = f"{path}.{key}" if path else key
    return [
        (f"{stem}[{index}]", item)
        for index, item in enumerate(value)
        if isinstance(item, dict) and not (but is not None and but(item))
    ]


def texts(parent: Any, key: str) -> list[str]:
    """The strings in the list under `key`."""
    value = parent.get(key) if isinstance(parent, dict) else None
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def text(parent: Any, key: str) -> str:
    value = parent.get(key) if isinstance(parent, dict) else None
    return value if isinstance(value, str) else ""


def number(parent: Any, key: str, default: int = 0) -> int:
    value = parent.get(key) if isinstance(parent, dict) else None
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def unique(report: Report, named: Iterable[tuple[str, Raw]], key: str = "name") -> None:
    """No two of `named` have the same `key`."""
    seen: set[str] = set()
    for path, item in named:
        name = text(item, key)
        if name and name in seen:
            report.duplicate(f"{path}.{key}", name)
        seen.add(name)


def check_labels(report: Report, labels: Any, path: str) -> None:
    for key, value in labels.items() if isinstance(labels, dict) else ():
        report.names(path, key, validate_label_key(key))
        if isinstance(value, str):
            report.names(path, value, validate_label_value(value))


def check_selector(report: Report, selector: Any, path: str) -> None:
    """A LabelSelector."""
    check_labels(report, obj(selector, "matchLabels"), f"{path}.matchLabels")
    for where, expression in objs(selector, "matchExpressions", path):
        values = texts(expression, "values")
        operator = text(expression, "operator")
        if operator in ("In", "NotIn") and not values:
            report.required(f"{where}.values", f"must be specified when operator is {operator}")
        if operator in ("Exists", "DoesNotExist") and values:
            report.forbidden(f"{where}.values", f"may not be specified when operator is {operator}")
        report.names(f"{where}.key", text(expression, "key"), validate_label_key(text(expression, "key")))
        for value in values:
            report.names(f"{where}.values", value, validate_label_value(value))


def check_quantity(report: Report, value: Any, field: str) -> Quantity | None:
    """The amount, when it is one and not negative."""
    try:
        amount = Quantity.parse(value)
    except (TypeError, ValueError) as error:
        report.invalid(field, value, str(error))
        return None
    if amount.nanos < 0:
        report.invalid(field, value, "must be greater than or equal to 0")
        return None
    return amount


def check_quantities(report: Report, amounts: Any, path: str) -> dict[str, Quantity]:
    """A map of resource names to amounts; those that are right come back."""
    good: dict[str, Quantity] = {}
    for name, value in amounts.items() if isinstance(amounts, dict) else ():
        field = f"{path}[{name}]"
        report.names(field, name, validate_qualified_name(name))
        amount = check_quantity(report, value, field)
        if amount is not None:
            good[name] = amount
    return good


def check_immutable(report: Report, new: Any, old: Any, field: str) -> None:
    """Nothing may change; absent, null and empty are the same."""
    if (new or None) != (old or None):
        report.immutable(field, new)
