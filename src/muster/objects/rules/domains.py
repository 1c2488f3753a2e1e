"""Rules about Domains: which names a party may have, what its certificate looks like, and what a quota may name. Pure.

A party's name becomes a namespace, part of DNS names and a label value, so it is a DNS label. Names that Kubernetes and Kuscia
keep for themselves are refused: a party called `kube-system` would be given the run of that namespace.

An update is held to what it makes wrong, not to what was wrong before. Every message begins with a reason code.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from muster.objects.names import KUBERNETES_NAMESPACES, NAMESPACE_CROSS_DOMAIN, validate_label_name, validate_subdomain
from muster.objects.reason_codes import Reason
from muster.objects.rules import bandwidth
from muster.objects.rules.report import Report, obj, text
from muster.objects.status import Raw

RESERVED_NAMES: Final = frozenset({*KUBERNETES_NAMESPACES, NAMESPACE_CROSS_DOMAIN, "master"})
RESERVED_PREFIX: Final = "kube-"
CERT_CHARS_MAX: Final = 64 * 1024
HARD_MAX: Final = 64
"""Resources that one quota may name."""
_SCOPED: Final = ("requests.", "limits.", "count/")

_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----\r?\n([A-Za-z0-9+/=\r\n]+)-----END CERTIFICATE-----\s*")
_BANDWIDTH = bandwidth.RULES["kuscia.secretflow", "Domain"]


def is_reserved(name: str) -> bool:
    """Whether no party may be called so."""
    return name in RESERVED_NAMES or name.startswith(RESERVED_PREFIX)


def check_domain(report: Report, raw: Raw, old: Raw | None) -> None:
    name, spec = text(obj(raw, "metadata"), "name"), obj(raw, "spec")
    before = obj(old, "spec") if old is not None else {}
    if old is None and name:
        _check_name(report, name, "metadata.name")
    master = text(spec, "master")
    if master and master != text(before, "master"):
        report.names("spec.master", master, (f"{Reason.MANIFEST_INVALID.value}: {p}" for p in validate_label_name(master)))
    cert = text(spec, "cert")
    if cert and cert != text(before, "cert"):
        problem = cert_problem(cert)
        if problem:
            report.invalid("spec.cert", cert[:40], f"{Reason.MANIFEST_INVALID.value}: {problem}")
    _check_hard(report, obj(obj(spec, "resourceQuota"), "hard"), obj(obj(before, "resourceQuota"), "hard"))
    _BANDWIDTH(report, raw, old)


def _check_name(report: Report, name: str, field: str) -> None:
    if is_reserved(name):
        kept = ", ".join(sorted(RESERVED_NAMES))
        report.invalid(
            field,
            name,
            f"{Reason.NAME_RESERVED.value}: this name is kept for the system, as are {kept} and all that begin with "
            f"{RESERVED_PREFIX}; choose another name for the party",
        )
        return
    if validate_subdomain(name):
        return  # said already, by the rule for all names
    problems = validate_label_name(name)
    why = "the party has a namespace of this name"
    report.names(field, name, (f"{Reason.MANIFEST_INVALID.value}: {problem}, because {why}" for problem in problems))


def cert_problem(cert: str) -> str:
    """What is wrong with a certificate as Kuscia has it (base64 of PEM); "" when nothing is."""
    if len(cert) > CERT_CHARS_MAX:
        return f"is longer than {CERT_CHARS_MAX} characters; give one certificate"
    way_out = "give the output of: base64 -w0 domain.crt"
    try:
        pem = base64.b64decode(cert.encode("ascii"), validate=True).decode("ascii")
    except (ValueError, binascii.Error):
        return f"is not base64; {way_out}"
    framed = _PEM.fullmatch(pem.lstrip())
    if framed is None:
        return f"is base64, but not of one certificate in PEM (-----BEGIN CERTIFICATE----- and so on); {way_out}"
    try:
        base64.b64decode("".join(framed[1].split()), validate=True)
    except (ValueError, binascii.Error):
        return f"holds a PEM certificate whose body is not base64; {way_out}"
    return ""


def _check_hard(report: Report, hard: Raw, before: Raw) -> None:
    field = "spec.resourceQuota.hard"
    if len(hard) > HARD_MAX and len(hard) > len(before):
        report.too_many(field, len(hard), HARD_MAX)
    for name in hard:
        scope = next((prefix for prefix in _SCOPED if name.startswith(prefix)), "")
        if scope and name not in before:
            report.invalid(
                f"{field}[{name}]",
                hard[name],
                f"{Reason.MANIFEST_INVALID.value}: a party's quota counts requests, by the plain name of the resource; "
                f"write {name.removeprefix(scope) or 'cpu'}",
            )
