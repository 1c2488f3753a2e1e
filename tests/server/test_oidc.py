"""Tokens of OpenID Connect issuers: claims to users by table, settings by table, and a real issuer with a real server."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.client.api import ApiClient
from muster.client.errors import CredentialError
from muster.client.kubeconfig import load
from muster.objects.status import Unauthorized
from muster.objects.time import format_time, wall_clock
from muster.server import jws, oidc_keys
from muster.server.oidc import NOT_BEFORE_LEEWAY_S, OidcTokens, identity_of_claims
from muster.server.oidc_settings import AuthenticationSettings, Issuer, OidcOptions, from_options, from_text
from muster.server.settings_files import SettingsError
from muster.server.tokens import Identity, TokenRefused
from tests.server.oidc_issuer import OidcIssuer, SigningKey, b64, oidc_issuer, part
from tests.server.running import RunningServer, running

NOW = 1_800_000_000.0
ISSUER = Issuer(url="https://id.example", audiences=("muster", "other"), username_prefix="oidc:", groups_claim="groups")
CLAIMS = {"iss": ISSUER.url, "sub": "ann", "aud": "muster", "exp": NOW + 60}


# --- claims


def _by(**changes: Any) -> Issuer:
    return msgspec.structs.replace(ISSUER, **changes)


@pytest.mark.parametrize(
    ("issuer", "more", "user", "groups"),
    [
        pytest.param(ISSUER, {}, "oidc:ann", (), id="plain"),
        pytest.param(_by(username_prefix=""), {}, "ann", (), id="no prefix"),
        pytest.param(ISSUER, {"aud": ["x", "other"]}, "oidc:ann", (), id="one of several audiences"),
        pytest.param(ISSUER, {"groups": ["a", "b", "a"]}, "oidc:ann", ("a", "b"), id="groups"),
        pytest.param(ISSUER, {"groups": "a"}, "oidc:ann", ("a",), id="one group as a text"),
        pytest.param(ISSUER, {"groups": []}, "oidc:ann", (), id="no groups"),
        pytest.param(ISSUER, {"groups": None}, "oidc:ann", (), id="groups are null"),
        pytest.param(_by(groups_prefix="g:"), {"groups": ["system:masters"]}, "oidc:ann", ("g:system:masters",), id="prefixed"),
        pytest.param(
            ISSUER, {"groups": ["system:masters", "muster:controllers", "a"]}, "oidc:ann", ("a",), id="reserved groups"
        ),
        pytest.param(_by(groups_claim=""), {"groups": ["a"]}, "oidc:ann", (), id="groups not asked for"),
        pytest.param(_by(username_claim="email"), {"email": "a@b"}, "oidc:a@b", (), id="email, not said whether verified"),
        pytest.param(
            _by(username_claim="email"), {"email": "a@b", "email_verified": True}, "oidc:a@b", (), id="email, verified"
        ),
        pytest.param(_by(required_claims=(("hd", "x"),)), {"hd": "x"}, "oidc:ann", (), id="required claim"),
        pytest.param(ISSUER, {"exp": NOW}, "oidc:ann", (), id="its last second"),
        pytest.param(ISSUER, {"nbf": NOW + NOT_BEFORE_LEEWAY_S}, "oidc:ann", (), id="a clock that is behind"),
        pytest.param(ISSUER, {"iat": NOW + 9999}, "oidc:ann", (), id="issued in the future, which nobody looks at"),
    ],
)
def test_claims_become_a_user(issuer: Issuer, more: dict[str, Any], user: str, groups: tuple[str, ...]) -> None:
    identity, expires_s = identity_of_claims(issuer, {**CLAIMS, **more}, NOW)
    assert (identity.user, identity.groups) == (user, groups)
    assert expires_s == ({**CLAIMS, **more})["exp"]


def test_uid() -> None:
    assert identity_of_claims(_by(uid_claim="oid"), {**CLAIMS, "oid": "u-1"}, NOW)[0].uid == "u-1"


@pytest.mark.parametrize(
    ("issuer", "more", "words"),
    [
        pytest.param(ISSUER, {"exp": None}, "never expire", id="no expiry"),
        pytest.param(ISSUER, {"exp": "soon"}, "'exp' is 'soon'", id="expiry is no time"),
        pytest.param(ISSUER, {"exp": True}, "'exp' is True", id="expiry is a boolean"),
        pytest.param(ISSUER, {"exp": NOW - 1}, "expired 1 s ago", id="expired"),
        pytest.param(ISSUER, {"nbf": NOW + NOT_BEFORE_LEEWAY_S + 1}, "not good before", id="not yet"),
        pytest.param(ISSUER, {"aud": "else"}, r"for \['else'\], not for", id="another audience"),
        pytest.param(ISSUER, {"aud": None}, "it is for", id="no audience"),
        pytest.param(ISSUER, {"aud": {"muster": 1}}, "'aud'", id="audience is no text"),
        pytest.param(ISSUER, {"sub": None}, "'sub'", id="no name"),
        pytest.param(ISSUER, {"sub": ""}, "'sub'", id="an empty name"),
        pytest.param(ISSUER, {"sub": 7}, "'sub' is 7", id="name is a number"),
        pytest.param(ISSUER, {"sub": "x" * 2000}, "at most 1024", id="a very long name"),
        pytest.param(_by(username_prefix=""), {"sub": "system:admin"}, "begins with system:", id="reserved name"),
        pytest.param(_by(username_prefix="system:"), {}, "begins with system:", id="reserved by the prefix"),
        pytest.param(ISSUER, {"groups": ["a", 1]}, "'groups'", id="groups of another type"),
        pytest.param(ISSUER, {"groups": {"a": 1}}, "'groups'", id="groups are an object"),
        pytest.param(
            _by(username_claim="email"), {"email": "a@b", "email_verified": False}, "not verified", id="email not verified"
        ),
        pytest.param(
            _by(username_claim="email"), {"email": "a@b", "email_verified": "true"}, "neither true nor", id="verified is a text"
        ),
        pytest.param(_by(required_claims=(("hd", "x"),)), {}, "'hd' is not there", id="required claim missing"),
        pytest.param(_by(required_claims=(("hd", "x"),)), {"hd": "y"}, "'hd' is 'y', not 'x'", id="required claim differs"),
        pytest.param(_by(required_claims=(("hd", "1"),)), {"hd": 1}, "'hd' is 1", id="required claim of another type"),
        pytest.param(_by(uid_claim="oid"), {}, "'oid'", id="no uid"),
    ],
)
def test_claims_that_stand_for_nobody(issuer: Issuer, more: dict[str, Any], words: str) -> None:
    with pytest.raises(TokenRefused, match=words):
        identity_of_claims(issuer, {**CLAIMS, **more}, NOW)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["exp", "nbf", "aud", "sub", "groups", "email", "email_verified", "hd"]), _JSON))
def test_no_claims_escape_as_another_exception(more: dict[str, Any]) -> None:
    with contextlib.suppress(TokenRefused):
        identity, _ = identity_of_claims(_by(required_claims=(("hd", "x"),)), {**CLAIMS, **more}, NOW)
        assert identity.user.startswith("oidc:")
        assert not any(group.startswith("system:") for group in identity.groups)


# --- tokens

_KEYS = {name: SigningKey(name, name) for name in jws.ALGORITHMS}


@pytest.mark.parametrize("algorithm", jws.ALGORITHMS)
def test_every_algorithm_verifies_and_no_key_for_another(algorithm: str) -> None:
    text = _KEYS[algorithm].sign(CLAIMS)
    token = jws.parse(text)
    assert token is not None
    for other in _KEYS.values():
        key = jws.key_of_jwk({**other.jwk(), "kid": algorithm})
        assert key is not None
        assert jws.verifies(token, key) == (other.id == algorithm)
    changed = jws.parse(f"{text.split('.')[0]}.{part({**CLAIMS, 'sub': 'eve'})}.{text.split('.')[2]}")
    own = jws.key_of_jwk(_KEYS[algorithm].jwk())
    assert changed is not None
    assert own is not None
    assert not jws.verifies(changed, own)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"{part({'alg': 'none'})}.{part(CLAIMS)}.", id="none"),
        pytest.param(f"{part({'alg': 'HS256', 'kid': 'RS256'})}.{part(CLAIMS)}.{b64(b'x' * 32)}", id="HMAC"),
        pytest.param(_KEYS["ES256"].sign(CLAIMS, crit=["x"]), id="critical extension"),
        pytest.param(_KEYS["ES256"].sign([]), id="claims are a list"),
        pytest.param(_KEYS["ES256"].sign(CLAIMS, kid=7), id="key id is a number"),
        pytest.param(_KEYS["ES256"].sign(CLAIMS) + "=", id="padded"),
        pytest.param(_KEYS["ES256"].sign(CLAIMS) + ".x", id="four parts"),
        pytest.param(f"{b64(b'[' * 9000)}.{part(CLAIMS)}.{b64(b'x')}", id="very deep"),
        pytest.param("a" * 100_000, id="very long"),
        pytest.param("..", id="dots"),
    ],
)
def test_what_is_no_token(text: str) -> None:
    assert jws.parse(text) is None


@given(st.text(max_size=200) | st.lists(st.binary(max_size=60), min_size=3, max_size=3).map(lambda p: ".".join(map(b64, p))))
def test_parsing_never_raises(text: str) -> None:
    token = jws.parse(text)
    assert token is None or isinstance(token.claims, dict)


@given(st.data())
def test_a_changed_token_is_never_accepted(data: st.DataObject) -> None:
    key = _KEYS["ES256"]
    text = key.sign(CLAIMS)
    at = data.draw(st.integers(0, len(text) - 1))
    new = data.draw(st.characters(codec="ascii").filter(lambda c: c != text[at]))
    token = jws.parse(text[:at] + new + text[at + 1 :])
    own = jws.key_of_jwk(key.jwk())
    assert own is not None
    assert token is None or not jws.verifies(token, own)


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(["kty", "n", "e", "crv", "x", "y", "use", "alg", "kid"]), _JSON | st.just("RSA")))
def test_no_key_set_raises(raw: dict[str, Any]) -> None:
    for usual in ({}, _KEYS["RS256"].jwk(), _KEYS["ES384"].jwk()):
        jws.key_of_jwk({**usual, **raw})


@pytest.mark.parametrize(
    "change",
    [{"use": "enc"}, {"alg": "HS256"}, {"n": b64(b"\xff" * 128)}, {"n": b64(b"\xff" * 2048)}, {"kty": "oct", "k": "AAAA"}],
    ids=["for encryption", "for HMAC", "1024 bits", "16384 bits", "a shared secret"],
)
def test_keys_that_are_not_used(change: dict[str, str]) -> None:
    assert jws.key_of_jwk({**_KEYS["RS256"].jwk(), **change}) is None


# --- settings


def _options(**more: Any) -> OidcOptions:
    return OidcOptions(issuer_url="https://id.example", client_ids=("muster",), **more)


def test_options_have_kubernetes_defaults() -> None:
    issuer = from_options(_options())
    assert (issuer.username_claim, issuer.username_prefix) == ("sub", "https://id.example#")
    assert (issuer.groups_claim, issuer.algorithms) == ("", ("RS256",))
    assert from_options(_options(username_claim="email")).username_prefix == "", "addresses are unique by themselves"
    assert from_options(_options(username_prefix="-")).username_prefix == ""
    assert from_options(_options(username_prefix="u:")).username_prefix == "u:"
    assert issuer.discovery == "https://id.example/.well-known/openid-configuration"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(OidcOptions(issuer_url="https://id.example"), "go together", id="no client"),
        pytest.param(OidcOptions(client_ids=("x",)), "go together", id="no issuer"),
        pytest.param(OidcOptions(issuer_url="http://id.example", client_ids=("x",)), "https://", id="not TLS"),
        pytest.param(OidcOptions(issuer_url="https://u:p@id.example", client_ids=("x",)), "no user", id="a password"),
        pytest.param(_options(signing_algs=("HS256",)), "--oidc-signing-algs 'HS256'", id="HMAC"),
        pytest.param(_options(signing_algs=("none",)), "--oidc-signing-algs 'none'", id="none"),
        pytest.param(_options(required_claims=("hd",)), "claim=value", id="half a claim"),
        pytest.param(_options(required_claims=("hd=x", "hd=y")), "twice", id="a claim twice"),
    ],
)
def test_options_that_make_no_sense(options: OidcOptions, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        from_options(options)


def test_a_ca_file_that_holds_none(tmp_path: Path) -> None:
    for text in ("", "rubbish", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        (tmp_path / "ca.crt").write_text(text)
        with pytest.raises(SettingsError, match=r"--oidc-ca-file .*ca\.crt"):
            AuthenticationSettings(options=_options(ca_file=tmp_path / "ca.crt")).load()
    with pytest.raises(SettingsError, match="No such file"):
        AuthenticationSettings(options=_options(ca_file=tmp_path / "gone")).load()


FILE = """\
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer:
    url: https://id.example
    audiences: [muster, other]
    audienceMatchPolicy: MatchAny
  claimValidationRules:
  - claim: hd
    requiredValue: x
  claimMappings:
    username:
      claim: sub
      prefix: "oidc:"
    groups:
      claim: groups
      prefix: ""
    uid:
      claim: oid
- issuer:
    url: https://second.example/realm
    discoveryURL: https://inside.example/second
    audiences: [muster]
  claimMappings:
    username: {claim: email, prefix: ""}
"""


def test_a_file_with_several_issuers() -> None:
    first, second = from_text(FILE, "auth.yaml")
    assert first == _by(required_claims=(("hd", "x"),), uid_claim="oid")
    assert (second.url, second.discovery) == ("https://second.example/realm", "https://inside.example/second")
    assert second.algorithms == jws.ALGORITHMS, "the file has no setting for them, as in Kubernetes"
    assert from_text(FILE.replace("io/v1\n", "io/v1beta1\n"), "auth.yaml") == (first, second)
    assert from_text("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n", "f") == ()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        pytest.param("io/v1\n", "io/v2\n", "line 1: apiVersion: 'apiserver.config.k8s.io/v2' is not", id="version"),
        pytest.param("kind: Auth", "kind: Other", "line 2: kind:", id="kind"),
        pytest.param("jwt:", "jwt: [", "not valid YAML", id="no YAML"),
        pytest.param("jwt:", "anonymous: {enabled: true}\njwt:", r"line 3: anonymous: there is no such field", id="anonymous"),
        pytest.param("url: https://id", "url: http://id", r"line 5: jwt\[0\]\.issuer\.url:", id="not TLS"),
        pytest.param("https://id.example", "https://kubernetes.default.svc", "service-account tokens", id="our own issuer"),
        pytest.param(
            "https://second.example/realm", "https://id.example", r"line 21: jwt\[1\]\.issuer\.url.*twice", id="twice"
        ),
        pytest.param("[muster, other]", "[]", r"line 6: jwt\[0\]\.issuer\.audiences", id="no audience"),
        pytest.param("    audienceMatchPolicy: MatchAny\n", "", "audienceMatchPolicy", id="no match policy"),
        pytest.param('      prefix: "oidc:"\n', "", r"claimMappings\.username\.prefix: required", id="no prefix"),
        pytest.param(
            "      claim: sub", "      expression: claims.sub", r"username\.expression: is a CEL", id="CEL in username"
        ),
        pytest.param("claim: oid", "expression: claims.oid", r"line 19: .*uid\.expression: is a CEL", id="CEL in uid"),
        pytest.param(
            "  - claim: hd\n    requiredValue: x", "  - expression: 'true'", r"\[0\]\.expression: is a CEL", id="rule"
        ),
        pytest.param(
            "    uid:\n      claim: oid\n",
            "    extra: [{key: a/b, valueExpression: c}]\n",
            r"extra\[0\]\.valueExpression: is a CEL",
            id="extra",
        ),
        pytest.param(
            "  claimMappings:\n    username: {",
            "  userValidationRules: [{expression: x}]\n  claimMappings:\n    username: {",
            r"jwt\[1\]\.userValidationRules\[0\]\.expression: is a CEL",
            id="user rules",
        ),
        pytest.param(
            "    url: https://id", "    egressSelectorType: x\n    url: https://id", "egressSelectorType", id="unknown"
        ),
        pytest.param("[muster, other]", "muster", r"line 6: jwt\[0\]\.issuer\.audiences: Expected `array`", id="type"),
        pytest.param("    audiences: [muster]", "    certificateAuthority: x\n    audiences: [a]", "no PEM", id="CA"),
    ],
)
def test_a_file_is_refused_with_the_place(old: str, new: str, words: str) -> None:
    assert old in FILE
    with pytest.raises(SettingsError, match=words):
        from_text(FILE.replace(old, new), "auth.yaml")


def test_a_file_and_options_exclude_each_other(tmp_path: Path) -> None:
    (tmp_path / "f").write_text(FILE)
    with pytest.raises(SettingsError, match="exclude each other"):
        AuthenticationSettings(file=tmp_path / "f", options=_options()).load()


# --- a real issuer


@pytest.fixture
def issuer(tmp_path: Path) -> Iterator[OidcIssuer]:
    with oidc_issuer(tmp_path) as made:
        yield made


class Clock:
    def __init__(self) -> None:
        self.now = wall_clock()

    def __call__(self) -> float:
        return self.now


def _trusting(issuer: OidcIssuer, **changes: Any) -> Issuer:
    return Issuer(
        url=issuer.url, audiences=("muster",), ca_pem=issuer.ca_pem, username_prefix="oidc:", groups_claim="groups", **changes
    )


@contextlib.asynccontextmanager
async def _tokens(*issuers: Issuer, clock: Callable[[], float] = wall_clock) -> Any:
    tokens = OidcTokens(issuers, clock, cached_max=10)
    try:
        yield tokens
    finally:
        await tokens.close()


async def test_keys_are_fetched_once(issuer: OidcIssuer) -> None:
    async with _tokens(_trusting(issuer)) as tokens:
        for _ in range(3):
            assert await tokens.identity(issuer.token(groups=["a"])) == Identity("oidc:ann", groups=("a",))
        assert await tokens.identity("muster-abc") is None
        assert await tokens.identity(SigningKey("x").sign({"iss": "https://elsewhere"})) is None
    assert issuer.requests == ["/.well-known/openid-configuration", "/keys"]


async def test_bad_tokens_do_not_flood_the_issuer(issuer: OidcIssuer) -> None:
    clock = Clock()
    async with _tokens(_trusting(issuer), clock=clock) as tokens:
        await tokens.identity(issuer.token())
        for number in range(50):
            with pytest.raises(TokenRefused, match="is not known"):
                await tokens.identity(issuer.token(SigningKey(f"invented-{number}")))
        assert len(issuer.requests) == 2, "an attempt was made a moment ago"
        clock.now += oidc_keys.ATTEMPT_SPACING_S
        for number in range(50):
            with pytest.raises(TokenRefused, match="is not known"):
                await tokens.identity(issuer.token(SigningKey(f"invented-{number}")))
        assert len(issuer.requests) == 4
        clock.now += oidc_keys.ATTEMPT_SPACING_S
        with pytest.raises(TokenRefused, match="expired"):
            await tokens.identity(issuer.token(SigningKey("invented"), exp=1))
        assert len(issuer.requests) == 4, "an expired token is refused without asking"


async def test_the_issuer_rotates_its_keys(issuer: OidcIssuer) -> None:
    clock = Clock()
    old = issuer.keys[0]
    async with _tokens(_trusting(issuer), clock=clock) as tokens:
        await tokens.identity(issuer.token())
        clock.now += oidc_keys.ATTEMPT_SPACING_S
        issuer.keys = [SigningKey("k2", "ES256"), old]
        assert (await tokens.identity(issuer.token())).user == "oidc:ann"
        assert (await tokens.identity(issuer.token(old))).user == "oidc:ann", "both are good while both are published"
        remembered = issuer.token(old, exp=clock.now + 9999)
        assert (await tokens.identity(remembered)).user == "oidc:ann"
        issuer.keys = issuer.keys[:1]
        clock.now += oidc_keys.KEYS_AGE_MAX_S
        fresh = issuer.token(exp=clock.now + 600)
        await tokens.identity(fresh)  # makes it look again, in the background
        await tokens._issuers[issuer.url][1]._task
        with pytest.raises(TokenRefused, match="'k1'"):
            await tokens.identity(remembered)
        assert (await tokens.identity(fresh)).user == "oidc:ann"


async def test_a_token_that_is_remembered_ends_with_its_key(issuer: OidcIssuer) -> None:
    """Even if no other token ever comes."""
    clock = Clock()
    async with _tokens(_trusting(issuer), clock=clock) as tokens:
        only = issuer.token(exp=clock.now + 99_999)
        assert (await tokens.identity(only)).user == "oidc:ann"
        issuer.keys = [SigningKey("k2", "ES256")]
        clock.now += oidc_keys.KEYS_AGE_MAX_S
        await tokens.identity(only)  # makes it look again, in the background
        keys = tokens._issuers[issuer.url][1]
        assert keys._task is not None
        await keys._task
        with pytest.raises(TokenRefused, match="'k1'"):
            await tokens.identity(only)


async def test_a_key_that_is_withdrawn_while_no_token_comes_ends_too(issuer: OidcIssuer) -> None:
    """The next token may be that of whoever stole the key: it must not be the one that has the keys looked at."""
    clock = Clock()
    async with _tokens(_trusting(issuer), clock=clock) as tokens:
        stolen = issuer.keys[0]
        await tokens.identity(issuer.token())
        issuer.keys = [SigningKey("k2", "ES256")]
        tokens.refresh_aged()
        keys = tokens._issuers[issuer.url][1]
        assert not keys.is_fetching, "they are young"
        clock.now += oidc_keys.KEYS_AGE_MAX_S
        tokens.refresh_aged()
        assert keys._task is not None
        await keys._task
        with pytest.raises(TokenRefused, match="'k1'"):
            await tokens.identity(issuer.token(stolen, exp=clock.now + 60))


async def test_an_issuer_that_does_not_answer_is_left_alone_for_a_while(issuer: OidcIssuer) -> None:
    clock = Clock()
    issuer.stop()
    try:
        async with _tokens(_trusting(issuer), clock=clock) as tokens:
            keys = tokens._issuers[issuer.url][1]
            for passed_s, fetches in ((0.0, 1), (oidc_keys.AGED_SPACING_S - 1, 1), (1.0, 2)):
                clock.now += passed_s
                tokens.refresh_aged()
                if keys._task is not None:
                    await keys._task
                assert keys.fetches == fetches
    finally:
        issuer.start()


async def test_an_issuer_that_withdraws_all_of_its_keys(issuer: OidcIssuer) -> None:
    clock = Clock()
    async with _tokens(_trusting(issuer), clock=clock) as tokens:
        only = issuer.token(exp=clock.now + 99_999)
        await tokens.identity(only)
        old, issuer.keys = issuer.keys, []
        clock.now += oidc_keys.KEYS_AGE_MAX_S
        with pytest.raises(TokenRefused, match="withdrawn all"):
            await tokens.identity(issuer.token(SigningKey("k9", "ES256"), exp=clock.now + 60))
        with pytest.raises(TokenRefused, match="'k1'"):
            await tokens.identity(only)
        issuer.keys = old
        clock.now += oidc_keys.ATTEMPT_SPACING_S
        assert (await tokens.identity(only)).user == "oidc:ann"


async def test_keys_are_kept_while_the_issuer_is_away(issuer: OidcIssuer) -> None:
    clock = Clock()
    async with _tokens(_trusting(issuer), clock=clock) as tokens:
        await tokens.identity(issuer.token())
        issuer.stop()
        try:
            clock.now += oidc_keys.KEYS_AGE_MAX_S + 1
            assert (await tokens.identity(issuer.token(exp=clock.now + 60, jti="1"))).user == "oidc:ann"
            await tokens._issuers[issuer.url][1]._task
            assert (await tokens.identity(issuer.token(exp=clock.now + 60, jti="2"))).user == "oidc:ann"
        finally:
            issuer.start()


async def test_an_issuer_that_was_away_at_first(issuer: OidcIssuer) -> None:
    clock = Clock()
    issuer.stop()
    async with _tokens(_trusting(issuer), clock=clock) as tokens:
        with pytest.raises(TokenRefused, match=r"is not known .*openid-configuration"):
            await tokens.identity(issuer.token())
        issuer.start()
        with pytest.raises(TokenRefused):
            await tokens.identity(issuer.token())
        clock.now += oidc_keys.ATTEMPT_SPACING_S
        assert (await tokens.identity(issuer.token())).user == "oidc:ann"


@pytest.mark.parametrize(
    ("path", "code", "body", "words"),
    [
        ("/.well-known/openid-configuration", 500, b"", "answered 500"),
        ("/.well-known/openid-configuration", 200, b"<html>", "no JSON"),
        ("/.well-known/openid-configuration", 200, b"[]", "no object"),
        ("/.well-known/openid-configuration", 200, b'{"issuer":"https://evil"}', "is of issuer 'https://evil'"),
        ("/keys", 302, b"", "answered 302"),
        ("/keys", 200, b"x" * (oidc_keys.DOCUMENT_BYTES_MAX + 1), "more than"),
        ("/keys", 200, b"[" * 100_000, "no JSON"),
        ("/keys", 200, b'{"keys":[],"x":[' + b"1e308," * 1000 + b"1]}", "numbers like 1e308"),
        ("/keys", 200, b'{"keys":7}', "no list of keys"),
        ("/keys", 200, b'{"keys":[{"kty":"oct","k":"AAAA"}]}', "none of the 1 keys"),
    ],
    ids=["error", "HTML", "list", "another issuer", "redirect", "too large", "deep", "extreme", "no keys", "shared secret"],
)
async def test_answers_that_can_not_be_used(issuer: OidcIssuer, path: str, code: int, body: bytes, words: str) -> None:
    issuer.answers[path] = (code, body)
    async with _tokens(_trusting(issuer)) as tokens:
        with pytest.raises(TokenRefused, match=words):
            await tokens.identity(issuer.token())


@pytest.mark.parametrize("place", ["http://127.0.0.1/keys", "https://[", "https://", "/keys", 7, None, "file:///etc/passwd"])
async def test_keys_from_elsewhere_than_an_https_url_are_not_taken(issuer: OidcIssuer, place: Any) -> None:
    told = {"issuer": issuer.url, "jwks_uri": place}
    issuer.answers["/.well-known/openid-configuration"] = (200, json.dumps(told).encode())
    async with _tokens(_trusting(issuer)) as tokens:
        with pytest.raises(TokenRefused, match="is not known"):
            await tokens.identity(issuer.token())
    assert len(issuer.requests) == 1


async def test_an_issuer_that_nobody_vouches_for(issuer: OidcIssuer) -> None:
    async with _tokens(msgspec.structs.replace(_trusting(issuer), ca_pem="")) as tokens:
        with pytest.raises(TokenRefused, match=r"(?i)certificate"):
            await tokens.identity(issuer.token())


async def test_only_the_algorithms_that_are_accepted(issuer: OidcIssuer) -> None:
    issuer.keys = [SigningKey("e", "ES256")]
    async with _tokens(_trusting(issuer, algorithms=("RS256",))) as tokens:
        with pytest.raises(TokenRefused, match="signed with ES256; accepted: RS256"):
            await tokens.identity(issuer.token())
    assert issuer.requests == []


# --- a real server


def _settings(issuer: OidcIssuer, **more: Any) -> AuthenticationSettings:
    return AuthenticationSettings(
        options=OidcOptions(
            issuer_url=issuer.url,
            client_ids=("muster",),
            groups_claim="groups",
            groups_prefix="idp:",
            ca_file=issuer.ca_path,
            **more,
        )
    )


def _whoami(server: RunningServer, token: str) -> Any:
    reply = server.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, token=token)
    return reply.json["status"]["userInfo"] if reply.code == 201 else reply.code


def _review(server: RunningServer, **spec: Any) -> Any:
    reply = server.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": spec})
    assert reply.code == 201, reply.body
    return reply.json["status"]


def test_users_of_an_issuer(issuer: OidcIssuer, tmp_path: Path) -> None:
    with running(tmp_path / "data", authentication=_settings(issuer)) as server:
        token = issuer.token(groups=["readers"])
        name = f"{issuer.url}#ann"
        assert _whoami(server, token) == {"username": name, "groups": ["idp:readers", "system:authenticated"]}
        assert server.request("GET", "/api/v1/nodes", token=token).code == 403
        role = {"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]}
        server.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", role)
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"}
        subjects = [{"kind": "Group", "name": "idp:readers"}]
        server.create(
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            {"metadata": {"name": "r"}, "roleRef": ref, "subjects": subjects},
        )
        assert server.request("GET", "/api/v1/nodes", token=token).code == 200
        assert server.request("GET", "/api/v1/nodes", token=issuer.token(groups=["others"])).code == 403
        for bad in (issuer.token(aud="else"), issuer.token(exp=1), token[:-8] + "AAAAAAAA", token + "A"):
            assert _whoami(server, bad) == 401
        # As kube-apiserver: the audience of a review is this server's, whatever the issuer calls it.
        assert _review(server, token=token)["user"]["username"] == name
        api = "https://kubernetes.default.svc"
        assert _review(server, token=token, audiences=[api, "x"])["audiences"] == [api]
        assert _review(server, token=token, audiences=["x"])["authenticated"] is False
        assert "expired" in _review(server, token=issuer.token(exp=1))["error"]
        text = server.server.config.audit_path
    lines = text.read_text()
    assert token not in lines
    assert "its signature is wrong" in lines, "why it was refused is told to the operator, not to the client"


def test_issuers_change_while_the_server_runs(issuer: OidcIssuer, tmp_path: Path) -> None:
    def written(prefix: str) -> str:
        jwt = {
            "issuer": {"url": issuer.url, "audiences": ["muster"], "certificateAuthority": issuer.ca_pem},
            "claimMappings": {"username": {"claim": "sub", "prefix": prefix}},
        }
        return yaml.safe_dump({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": [jwt]})

    def until(prefix: str) -> None:
        while _whoami(server, token) != {"username": f"{prefix}ann", "groups": ["system:authenticated"]}:
            pass

    file = tmp_path / "auth.yaml"
    file.write_text(written("one:"))
    trusted = AuthenticationSettings(file=file)
    with running(tmp_path / "data", authentication=trusted, settings_check_interval_s=0.02) as server:
        token = issuer.token()
        until("one:")
        file.write_text(written("two:"))
        until("two:")
        file.write_text("rubbish")
        file.write_text(written("three:"))
        until("three:")
        file.write_text("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt: []\n")
        while _whoami(server, token) != 401:
            pass


def test_a_server_does_not_start_with_settings_that_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "auth.yaml").write_text("kind: Pod\n")
    with (
        pytest.raises(SettingsError, match="kind"),
        running(tmp_path / "data", authentication=AuthenticationSettings(file=tmp_path / "auth.yaml")),
    ):
        pass


@pytest.mark.slow
def test_kubectl_and_our_client_log_in_by_a_plugin(issuer: OidcIssuer, tmp_path: Path) -> None:
    """The plugin is a real program that hands out the issuer's tokens, each for a few uses of the file that holds them."""
    with running(tmp_path / "data", authentication=_settings(issuer)) as server:
        told, runs = tmp_path / "told.json", tmp_path / "runs"
        plugin = tmp_path / "login"
        plugin.write_text(
            f"#!{sys.executable}\nimport json, os, pathlib\n"
            "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
            "assert info['spec']['cluster']['server'].startswith('https://'), info\n"
            "assert os.environ['REALM'] == 'lab'\n"
            f"open({str(runs)!r}, 'a').write('x')\n"
            f"print(pathlib.Path({str(told)!r}).read_text())\n"
        )
        plugin.chmod(0o755)

        def tell(version: str = "v1", **status: Any) -> None:
            api_version = f"client.authentication.k8s.io/{version}"
            told.write_text(json.dumps({"apiVersion": api_version, "kind": "ExecCredential", "status": status}))

        def kubeconfig(version: str) -> Path:
            raw = yaml.safe_load(server.server.kubeconfig_path.read_text())
            user = {
                "exec": {
                    "apiVersion": f"client.authentication.k8s.io/{version}",
                    "command": str(plugin),
                    "env": [{"name": "REALM", "value": "lab"}],
                    "interactiveMode": "Never",
                    "provideClusterInfo": True,
                    "installHint": "Get it from the lab.",
                }
            }
            raw["users"][0]["user"] = user
            path = tmp_path / f"kubeconfig-{version}"
            path.write_text(yaml.safe_dump(raw))
            return path

        for version in ("v1", "v1beta1"):
            path = kubeconfig(version)
            tell(version, token=issuer.token(), expirationTimestamp=format_time(wall_clock() + 300))
            environment = {"KUBECONFIG": str(path)}
            assert f"{issuer.url}#ann" in server.kubectl("auth", "whoami", env=environment)
        tell("v1", token=issuer.token(exp=1))
        assert "must be logged in" in server.kubectl("get", "nodes", env={"KUBECONFIG": str(kubeconfig("v1"))}, code=1)

        async def ask() -> Any:
            async with ApiClient(load(kubeconfig("v1"))) as client:
                return await client.version()

        before = len(runs.read_text())
        with pytest.raises(Unauthorized):
            server.call(ask())
        assert len(runs.read_text()) == before + 2, "refused once, asked again once"
        tell("v1", token=issuer.token())
        assert server.call(ask())["major"] == "1"
        plugin.unlink()
        with pytest.raises(CredentialError, match=r"Get it from the lab\."):
            server.call(ask())


@pytest.mark.slow
def test_kubectl_logs_in_with_a_token_alone(issuer: OidcIssuer, tmp_path: Path) -> None:
    with running(tmp_path / "data", authentication=_settings(issuer)) as server:
        environment = {"KUBECONFIG": str(tmp_path / "kubeconfig")}

        def config(*args: str) -> None:
            server.kubectl("config", *args, env=environment)

        config("set-cluster", "muster", f"--server={server.server.url}", f"--certificate-authority={server.server.ca_path}")
        config("set-context", "muster", "--cluster=muster", "--user=me")
        config("use-context", "muster")
        for token, name in ((server.user("kim"), "kim"), (issuer.token(), f"{issuer.url}#ann")):
            config("set-credentials", "me", f"--token={token}")
            assert name in server.kubectl("auth", "whoami", env=environment)
