"""May this CustomResourceDefinition be? kube-apiserver's rules for what users bring, with every breach named. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

from muster.objects.jsonpath import compile as compile_jsonpath
from muster.objects.meta import annotations_of, name_of
from muster.objects.names import validate_dns1035_label, validate_subdomain
from muster.objects.status import Cause, Raw
from muster.objects.structural import Structural

APPROVAL: Final = "api-approved.kubernetes.io"
"""Annotation that groups under k8s.io and kubernetes.io must carry: where the API was approved, or that it was not."""

_COLUMN_TYPES: Final = ("boolean", "date", "integer", "number", "string")
_COLUMN_FORMATS: Final = ("", "byte", "date", "date-time", "double", "float", "int32", "int64", "password")
_SIMPLE_PATH: Final = re.compile(r"(\.[a-zA-Z_][-a-zA-Z0-9_]*)+")
_VERSIONS_MAX: Final = 32


def validate_crd(crd: Raw, old: Raw | None = None) -> list[Cause]:
    """Everything that is wrong with a definition whose shape its own schema has passed. `old` is what it replaces."""
    spec = _object(crd.get("spec"))
    names = _object(spec.get("names"))
    versions = [version for version in _list(spec.get("versions")) if isinstance(version, dict)]
    causes = [
        *_validate_names(crd, spec, names),
        *_validate_versions(versions),
        *_validate_conversion(spec.get("conversion")),
    ]
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        causes.append(
            _cause("spec.scope", f"Unsupported value: {spec.get('scope')!r}: Namespaced or Cluster", "FieldValueNotSupported")
        )
    if spec.get("preserveUnknownFields"):
        causes.append(
            _cause("spec.preserveUnknownFields", "Invalid value: true: must be false; use x-kubernetes-preserve-unknown-fields")
        )
    if old is not None:
        causes += _validate_change(spec, names, versions, old)
    return causes


def crd_warnings(crd: Raw) -> list[str]:
    """What a valid definition says that this server stores and does not act upon."""
    warnings: list[str] = []
    for index, version in enumerate(crd["spec"]["versions"]):
        schema = _object(version.get("schema")).get("openAPIV3Schema")
        warnings += Structural.definition_warnings(schema, f"spec.versions[{index}].schema.openAPIV3Schema")
    return warnings


def _cause(field: str, message: str, reason: str = "FieldValueInvalid") -> Cause:
    return Cause(field=field, message=message, reason=reason)


def _object(value: Any) -> Raw:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def is_protected(group: str) -> bool:
    return group.endswith((".k8s.io", ".kubernetes.io")) or group in ("k8s.io", "kubernetes.io")


def _validate_names(crd: Raw, spec: Raw, names: Raw) -> list[Cause]:
    causes: list[Cause] = []
    group, plural, kind = (str(part or "") for part in (spec.get("group"), names.get("plural"), names.get("kind")))
    causes += [_cause("spec.group", f"Invalid value: {group!r}: {problem}") for problem in validate_subdomain(group)]
    if group and "." not in group:
        causes.append(_cause("spec.group", f"Invalid value: {group!r}: must be a domain with at least one dot"))
    if name_of(crd) != f"{plural}.{group}":
        causes.append(
            _cause(
                "metadata.name",
                f"Invalid value: {name_of(crd)!r}: must be '{plural}.{group}', made of spec.names.plural and spec.group",
            )
        )
    approval = annotations_of(crd).get(APPROVAL, "")
    if is_protected(group) and not approval.startswith(("https://", "http://", "unapproved")):
        causes.append(
            _cause(
                f"metadata.annotations[{APPROVAL}]",
                f"Required value: group {group!r} is protected: put the URL of the API's approval here",
                "FieldValueRequired",
            )
        )
    listed = [("plural", plural), ("kind", kind.lower())]
    listed += [(word, str(names[word]).lower()) for word in ("singular", "listKind") if names.get(word)]
    for word in ("shortNames", "categories"):
        values = names.get(word)
        listed += [(f"{word}[{i}]", str(value)) for i, value in enumerate(values if isinstance(values, list) else ())]
    for field, text in listed:
        causes += [
            _cause(f"spec.names.{field}", f"Invalid value: {text!r}: {problem}") for problem in validate_dns1035_label(text)
        ]
    if kind and (names.get("listKind") or f"{kind}List") == kind:
        causes.append(_cause("spec.names.listKind", f"Invalid value: {kind!r}: kind and listKind may not be the same"))
    return causes


def _validate_versions(versions: list[Raw]) -> list[Cause]:
    causes: list[Cause] = []
    stored = [version for version in versions if version.get("storage") is True]
    if len(stored) != 1:
        causes.append(_cause("spec.versions", f"Invalid value: {len(stored)} versions have storage: true; exactly one must"))
    if len(versions) > _VERSIONS_MAX:
        return [
            *causes,
            _cause("spec.versions", f"Too many: {len(versions)}: at most {_VERSIONS_MAX} versions", "FieldValueTooMany"),
        ]
    seen: set[str] = set()
    for index, version in enumerate(versions):
        path = f"spec.versions[{index}]"
        name = str(version.get("name") or "")
        causes += [_cause(f"{path}.name", f"Invalid value: {name!r}: {problem}") for problem in validate_dns1035_label(name)]
        if name in seen:
            causes.append(_cause(f"{path}.name", f"Duplicate value: {name!r}", "FieldValueDuplicate"))
        seen.add(name)
        schema = _object(version.get("schema")).get("openAPIV3Schema")
        if schema is None:
            causes.append(
                _cause(f"{path}.schema.openAPIV3Schema", "Required value: schemas are required", "FieldValueRequired")
            )
        else:
            causes += Structural.validate_definition(schema, f"{path}.schema.openAPIV3Schema")
        causes += _validate_columns(version.get("additionalPrinterColumns"), f"{path}.additionalPrinterColumns")
        causes += _validate_scale(_object(version.get("subresources")).get("scale"), f"{path}.subresources.scale")
        for number, field in enumerate(_list(version.get("selectableFields"))):
            text = str(field.get("jsonPath") or "") if isinstance(field, dict) else ""
            if not _SIMPLE_PATH.fullmatch(text):
                causes.append(
                    _cause(
                        f"{path}.selectableFields[{number}].jsonPath",
                        f"Invalid value: {text!r}: must be a path such as .spec.color",
                    )
                )
    return causes


def _validate_columns(columns: Any, path: str) -> list[Cause]:
    causes: list[Cause] = []
    for index, column in enumerate(columns if isinstance(columns, list) else ()):
        if not isinstance(column, dict):
            continue
        kind, form, text = column.get("type"), column.get("format") or "", str(column.get("jsonPath") or "")
        if not column.get("name"):
            causes.append(_cause(f"{path}[{index}].name", "Required value", "FieldValueRequired"))
        if kind not in _COLUMN_TYPES:
            causes.append(
                _cause(
                    f"{path}[{index}].type",
                    f"Unsupported value: {kind!r}: supported values: {', '.join(_COLUMN_TYPES)}",
                    "FieldValueNotSupported",
                )
            )
        if form not in _COLUMN_FORMATS:
            causes.append(
                _cause(
                    f"{path}[{index}].format",
                    f"Unsupported value: {form!r}: supported values: {', '.join(_COLUMN_FORMATS[1:])}",
                    "FieldValueNotSupported",
                )
            )
        try:
            compile_jsonpath(text)
        except ValueError as error:
            causes.append(_cause(f"{path}[{index}].jsonPath", f"Invalid value: {text!r}: {error}"))
        if not text.startswith("."):
            causes.append(
                _cause(f"{path}[{index}].jsonPath", f"Invalid value: {text!r}: must begin with a dot, as in .spec.size")
            )
    return causes


def _validate_scale(scale: Any, path: str) -> list[Cause]:
    if not isinstance(scale, dict):
        return []
    causes = []
    for word, roots in (
        ("specReplicasPath", (".spec.",)),
        ("statusReplicasPath", (".status.",)),
        ("labelSelectorPath", (".spec.", ".status.")),
    ):
        text = scale.get(word)
        if text is None and word == "labelSelectorPath":
            continue
        if not isinstance(text, str) or not _SIMPLE_PATH.fullmatch(text) or not text.startswith(roots):
            causes.append(_cause(f"{path}.{word}", f"Invalid value: {text!r}: must be a path under {' or '.join(roots)}"))
    return causes


def _validate_conversion(conversion: Any) -> list[Cause]:
    if not isinstance(conversion, dict) or conversion.get("strategy") in (None, "None"):
        return []
    return [
        _cause(
            "spec.conversion.strategy",
            f"Unsupported value: {conversion.get('strategy')!r}: this server converts by apiVersion alone; use None",
            "FieldValueNotSupported",
        )
    ]


def _validate_change(spec: Raw, names: Raw, versions: list[Raw], old: Raw) -> list[Cause]:
    """What may not change while objects of the kind may exist."""
    before = _object(old.get("spec"))
    causes = []
    for field, was, now in (
        ("spec.group", before.get("group"), spec.get("group")),
        ("spec.scope", before.get("scope"), spec.get("scope")),
        ("spec.names.plural", _object(before.get("names")).get("plural"), names.get("plural")),
        ("spec.names.kind", _object(before.get("names")).get("kind"), names.get("kind")),
    ):
        if was != now:
            causes.append(
                _cause(
                    field, f"Invalid value: {now!r}: field is immutable (was {was!r}); delete the definition and make another"
                )
            )
    known = {version.get("name") for version in versions}
    for index, name in enumerate(_list(_object(old.get("status")).get("storedVersions"))):
        if name not in known:
            causes.append(
                _cause(
                    f"status.storedVersions[{index}]",
                    f"Invalid value: {name!r}: objects may be stored in it, so spec.versions must list it",
                )
            )
    return causes
