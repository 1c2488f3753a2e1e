"""Which issuers of OpenID Connect tokens are trusted, and how their claims become a user: Kubernetes' options, and its file.

Two ways to say it, as in kube-apiserver, never both: options for one issuer (`from_options`), or an AuthenticationConfiguration
(`from_text`) with several. CEL expressions are not evaluated: a field that needs one is refused by name, so that a rule which
someone relies on is never silently left out.

Values and pure functions, but for `AuthenticationSettings.load`, which reads files.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from muster.server import settings_files
from muster.server.jws import ALGORITHMS
from muster.server.settings_files import Document, SettingsError, Step
from muster.server.tokens import ISSUER

API_VERSIONS: Final = tuple(f"apiserver.config.k8s.io/{version}" for version in ("v1", "v1beta1"))
KIND: Final = "AuthenticationConfiguration"
ISSUERS_MAX: Final = 64
"""As in Kubernetes."""
NO_PREFIX: Final = "-"
_CEL: Final = "is a CEL expression, which this server does not evaluate; use claim and prefix, or claim and requiredValue"


class Issuer(msgspec.Struct, frozen=True, kw_only=True):
    """One issuer, ready to be used: defaults are filled in and every value is checked."""

    url: str
    audiences: tuple[str, ...]
    """A token must be for one of them."""
    discovery_url: str = ""
    ca_pem: str = ""
    """Who vouches for the issuer's own certificate; the system's authorities when empty."""
    username_claim: str = "sub"
    username_prefix: str = ""
    groups_claim: str = ""
    groups_prefix: str = ""
    uid_claim: str = ""
    required_claims: tuple[tuple[str, str], ...] = ()
    algorithms: tuple[str, ...] = ALGORITHMS

    @property
    def discovery(self) -> str:
        return self.discovery_url or self.url.rstrip("/") + "/.well-known/openid-configuration"


class OidcOptions(msgspec.Struct, frozen=True, kw_only=True):
    """kube-apiserver's `--oidc-*` options as they were given."""

    issuer_url: str = ""
    client_ids: tuple[str, ...] = ()
    username_claim: str = "sub"
    username_prefix: str = ""
    groups_claim: str = ""
    groups_prefix: str = ""
    required_claims: tuple[str, ...] = ()
    """Each `claim=value`."""
    ca_file: Path | None = None
    signing_algs: tuple[str, ...] = ("RS256",)


class AuthenticationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the issuers are told: a file, or options. Neither: there are none."""

    file: Path | None = None
    options: OidcOptions = OidcOptions()

    def load(self) -> tuple[Issuer, ...]:
        """What the files say now. Blocking. SettingsError for whatever is wrong."""
        if self.file is not None:
            if self.options != OidcOptions():
                raise SettingsError("--authentication-config and --oidc-... exclude each other; put the issuer into the file")
            return from_text(settings_files.read(self.file, "--authentication-config"), str(self.file))
        if self.options == OidcOptions():
            return ()
        ca_pem = settings_files.read(self.options.ca_file, "--oidc-ca-file") if self.options.ca_file is not None else ""
        return (from_options(self.options, ca_pem),)


# --- options


def from_options(options: OidcOptions, ca_pem: str = "") -> Issuer:
    if not options.issuer_url or not options.client_ids:
        raise SettingsError("--oidc-issuer-url and --oidc-client-id go together; give both, or no --oidc-... at all")
    if problem := _url_problem(options.issuer_url):
        raise SettingsError(f"--oidc-issuer-url {options.issuer_url!r}: {problem}")
    for algorithm in options.signing_algs:
        if algorithm not in ALGORITHMS:
            raise SettingsError(f"--oidc-signing-algs {algorithm!r}: not one of {', '.join(ALGORITHMS)}")
    required = [text.partition("=") for text in options.required_claims]
    for text, (claim, equals, _) in zip(options.required_claims, required, strict=True):
        if not claim or not equals:
            raise SettingsError(f"--oidc-required-claim {text!r}: give it as claim=value")
    if len({claim for claim, _, _ in required}) != len(required):
        raise SettingsError("--oidc-required-claim: a claim is given twice, and a token can't have two values for it")
    if problem := _ca_problem(ca_pem) if ca_pem.strip() or options.ca_file is None else "is empty":
        raise SettingsError(f"--oidc-ca-file {options.ca_file}: {problem}")
    prefix = options.username_prefix
    if not prefix and options.username_claim != "email":
        prefix = f"{options.issuer_url}#"
    return Issuer(
        url=options.issuer_url,
        audiences=options.client_ids,
        ca_pem=ca_pem,
        username_claim=options.username_claim,
        username_prefix="" if prefix == NO_PREFIX else prefix,
        groups_claim=options.groups_claim,
        groups_prefix=options.groups_prefix,
        required_claims=tuple((claim, value) for claim, _, value in required),
        algorithms=options.signing_algs,
    )


# --- the file


class _Issuer(msgspec.Struct, rename={"discovery_url": "discoveryURL"}, forbid_unknown_fields=True, kw_only=True):
    url: str = ""
    discovery_url: str = ""
    certificate_authority: str = msgspec.field(default="", name="certificateAuthority")
    audiences: list[str] = []
    audience_match_policy: str = msgspec.field(default="", name="audienceMatchPolicy")


class _Rule(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    claim: str = ""
    required_value: str = ""
    expression: str = ""
    message: str = ""


class _Mapping(msgspec.Struct, forbid_unknown_fields=True):
    claim: str = ""
    prefix: str | None = None
    expression: str = ""


class _Uid(msgspec.Struct, forbid_unknown_fields=True):
    claim: str = ""
    expression: str = ""


class _Extra(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    key: str = ""
    value_expression: str = ""


class _Mappings(msgspec.Struct, forbid_unknown_fields=True):
    username: _Mapping = msgspec.field(default_factory=_Mapping)
    groups: _Mapping = msgspec.field(default_factory=_Mapping)
    uid: _Uid = msgspec.field(default_factory=_Uid)
    extra: list[_Extra] = []


class _UserRule(msgspec.Struct, forbid_unknown_fields=True):
    expression: str = ""
    message: str = ""


class _Jwt(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    issuer: _Issuer = msgspec.field(default_factory=_Issuer)
    claim_validation_rules: list[_Rule] = []
    claim_mappings: _Mappings = msgspec.field(default_factory=_Mappings)
    user_validation_rules: list[_UserRule] = []


class _Configuration(msgspec.Struct, forbid_unknown_fields=True):
    jwt: list[_Jwt] = []


def from_text(text: str, source: str) -> tuple[Issuer, ...]:
    configuration, document = settings_files.decode(text, source, _Configuration, kind=KIND, api_versions=API_VERSIONS)
    if len(configuration.jwt) > ISSUERS_MAX:
        document.refuse(["jwt"], f"{len(configuration.jwt)} issuers; at most {ISSUERS_MAX} are possible")
    found: list[Issuer] = []
    for index, jwt in enumerate(configuration.jwt):
        issuer = _issuer(jwt, document, ["jwt", index])
        if any(issuer.url == other.url for other in found):
            document.refuse(["jwt", index, "issuer", "url"], f"{issuer.url!r} is there twice; a token is from one issuer")
        if issuer.discovery_url and any(issuer.discovery_url == other.discovery_url for other in found):
            document.refuse(["jwt", index, "issuer", "discoveryURL"], f"{issuer.discovery_url!r} is there twice")
        found.append(issuer)
    return tuple(found)


def _issuer(jwt: _Jwt, document: Document, at: list[Step]) -> Issuer:
    told = jwt.issuer
    here = [*at, "issuer"]
    if problem := _url_problem(told.url):
        document.refuse([*here, "url"], f"{told.url!r}: {problem}")
    if told.discovery_url:
        problem = _url_problem(told.discovery_url)
        if told.discovery_url.rstrip("/") == told.url.rstrip("/"):
            problem = "it is the issuer's url; leave it out, or name the discovery document itself"
        if problem:
            document.refuse([*here, "discoveryURL"], f"{told.discovery_url!r}: {problem}")
    if not told.audiences or not all(told.audiences):
        document.refuse([*here, "audiences"], "at least one audience is needed, and none may be empty")
    if told.audience_match_policy not in ("", "MatchAny") or (len(told.audiences) > 1 and not told.audience_match_policy):
        document.refuse(
            [*here, "audienceMatchPolicy"], f"{told.audience_match_policy!r}: it is MatchAny, and needed for several audiences"
        )
    if problem := _ca_problem(told.certificate_authority):
        document.refuse([*here, "certificateAuthority"], problem)
    mappings = jwt.claim_mappings
    username = _mapping(mappings.username, document, [*at, "claimMappings", "username"], is_required=True)
    groups = _mapping(mappings.groups, document, [*at, "claimMappings", "groups"], is_required=False)
    if mappings.uid.expression:
        document.refuse([*at, "claimMappings", "uid", "expression"], _CEL)
    if mappings.extra:
        document.refuse([*at, "claimMappings", "extra", 0, "valueExpression"], _CEL)
    if jwt.user_validation_rules:
        document.refuse([*at, "userValidationRules", 0, "expression"], _CEL)
    return Issuer(
        url=told.url,
        audiences=tuple(told.audiences),
        discovery_url=told.discovery_url,
        ca_pem=told.certificate_authority,
        username_claim=username[0],
        username_prefix=username[1],
        groups_claim=groups[0],
        groups_prefix=groups[1],
        uid_claim=mappings.uid.claim,
        required_claims=_required(jwt.claim_validation_rules, document, [*at, "claimValidationRules"]),
    )


def _mapping(told: _Mapping, document: Document, at: list[Step], *, is_required: bool) -> tuple[str, str]:
    if told.expression:
        document.refuse([*at, "expression"], _CEL)
    if not told.claim:
        if is_required:
            document.refuse([*at, "claim"], "required: the claim that holds the user's name")
        if told.prefix is not None:
            document.refuse([*at, "prefix"], "a prefix without a claim means nothing")
        return "", ""
    if told.prefix is None:
        document.refuse([*at, "prefix"], 'required beside claim; "" for none')
    return told.claim, told.prefix


def _required(rules: Sequence[_Rule], document: Document, at: list[Step]) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for index, rule in enumerate(rules):
        if rule.expression or rule.message:
            document.refuse([*at, index, "expression" if rule.expression else "message"], _CEL)
        if not rule.claim:
            document.refuse([*at, index, "claim"], "required: the claim whose value is checked")
        if rule.claim in found:
            document.refuse([*at, index, "claim"], f"{rule.claim!r} is there twice")
        found[rule.claim] = rule.required_value
    return tuple(found.items())


# --- both


def _url_problem(text: str) -> str:
    """Why this can't be the URL of an issuer; "" when it can."""
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError as error:
        return f"not a URL: {error}"
    if url.scheme != "https" or not url.hostname or not text.isascii() or any(char.isspace() for char in text):
        return "must be an https:// URL with a host"
    if url.username is not None or url.password is not None or url.query or url.fragment:
        return "must have no user, query or fragment"
    if text == ISSUER:
        return "is the issuer of this server's own service-account tokens"
    return ""


def _ca_problem(pem: str) -> str:
    if not pem:
        return ""
    try:
        ssl.create_default_context(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        return f"holds no PEM certificates that can be used: {error}"
    return ""
