"""Whom `muster up` lets in beside its own tokens and certificates, and what its audit log tells: kube-apiserver's options.

Imports nothing of the server until the settings are made, so that `--help` stays quick.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
import msgspec

if TYPE_CHECKING:
    from muster.server.oidc_settings import AuthenticationSettings

F = TypeVar("F", bound=Callable[..., Any])
_FILE = click.Path(path_type=Path)


class AccessOptions(msgspec.Struct, frozen=True, kw_only=True):
    """As they were given; what they mean is checked by the server, before it opens its port."""

    authentication_config: Path | None = None
    audit_policy_file: Path | None = None
    oidc: dict[str, Any] = msgspec.field(default_factory=dict)

    def settings(self) -> AuthenticationSettings:
        from muster.server.oidc_settings import AuthenticationSettings, OidcOptions

        return AuthenticationSettings(file=self.authentication_config, options=OidcOptions(**self.oidc))


_OIDC: tuple[tuple[str, str, str, str, bool], ...] = (
    ("--oidc-issuer-url", "issuer_url", "URL", "Trust tokens of this OpenID Connect issuer, an https:// URL.", False),
    (
        "--oidc-client-id",
        "client_ids",
        "ID",
        "An audience that tokens of the issuer may be for. May be given several times.",
        True,
    ),
    ("--oidc-username-claim", "username_claim", "CLAIM", "The claim that is the user's name.  [default: sub]", False),
    (
        "--oidc-username-prefix",
        "username_prefix",
        "TEXT",
        "Put before the user's name; - for nothing.  [default: the issuer's URL and #, but nothing for the claim email]",
        False,
    ),
    ("--oidc-groups-claim", "groups_claim", "CLAIM", "The claim that lists the user's groups.", False),
    ("--oidc-groups-prefix", "groups_prefix", "TEXT", "Put before the name of each group.", False),
    ("--oidc-required-claim", "required_claims", "CLAIM=VALUE", "What tokens must say. May be given several times.", True),
    ("--oidc-ca-file", "ca_file", "FILE", "Who vouches for the issuer's certificate.  [default: the system's CAs]", False),
    ("--oidc-signing-algs", "signing_algs", "ALG,...", "Algorithms of signatures that are accepted.  [default: RS256]", False),
)


def access_options(function: F) -> F:
    """`--authentication-config`, `--oidc-...` and `--audit-policy-file`, together as the argument `access`."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        oidc = {field: kwargs.pop(f"oidc_{field}") for _, field, _, _, _ in _OIDC}
        oidc = {field: value for field, value in oidc.items() if value not in (None, ())}
        if "signing_algs" in oidc:
            oidc["signing_algs"] = tuple(word.strip() for word in oidc["signing_algs"].split(",") if word.strip())
        access = AccessOptions(
            authentication_config=kwargs.pop("authentication_config"),
            audit_policy_file=kwargs.pop("audit_policy_file"),
            oidc=oidc,
        )
        return function(*args, access=access, **kwargs)

    options = [
        click.option(
            "--authentication-config",
            metavar="FILE",
            type=_FILE,
            help="An AuthenticationConfiguration with the OpenID Connect issuers to trust, instead of --oidc-... options. "
            "Read again when it changes.",
        ),
        *(
            click.option(
                name,
                f"oidc_{field}",
                metavar=metavar,
                multiple=is_multiple,
                type=_FILE if metavar == "FILE" else str,
                help=text,
            )
            for name, field, metavar, text, is_multiple in _OIDC
        ),
        click.option(
            "--audit-policy-file",
            metavar="FILE",
            type=_FILE,
            help="An audit.k8s.io/v1 Policy: how much the audit log tells about what.  [default: the metadata of all requests]",
        ),
    ]
    decorated: Any = wrapper
    for option in reversed(options):
        decorated = option(decorated)
    return cast(F, decorated)
