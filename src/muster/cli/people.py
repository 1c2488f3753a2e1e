"""Who the caller is, as the server knows them, and the tokens with which users log in.

A list of one's own work must say whose it is; `own_selector` says it for those who may not list everything. Runs on the
command's event loop; keeps nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from muster.cli.errors import CliError, ExitCode
from muster.objects.labels import Muster

if TYPE_CHECKING:
    from muster.cli.session import Session
    from muster.client.api import ApiClient
    from muster.objects.status import Raw

SELF_REVIEW_PATH: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
SECRET_PREFIX: Final = "user-token-"  # noqa: S105 - of the name of an object
ID_LEN: Final = 12
USERS_LISTED_MAX: Final = 100
"""In one selector."""


async def login_of(client: ApiClient) -> str:
    """The name that the server knows the caller by; "" where it does not tell (clusters before 1.28)."""
    import msgspec

    from muster.objects.status import Forbidden, NotFound

    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer: Raw = msgspec.json.decode((await client.request("POST", SELF_REVIEW_PATH, body=asked)).body)
    except (NotFound, Forbidden):  # what a server does not have at all it may refuse first
        return ""
    return str(((answer.get("status") or {}).get("userInfo") or {}).get("username") or "")


async def who_am_i(client: ApiClient) -> Raw | None:
    """What the server says of the caller as a User; None where the server is not Muster's own."""
    from muster.cli.asking import ask, is_own
    from muster.objects.status import Forbidden, NotFound

    if not await is_own(client):
        return None
    try:
        return await ask(client, "/muster/v1/people/me")
    except (NotFound, Forbidden):  # an older server, or one whose administrators took this right away
        return None


async def own_selector(client: ApiClient) -> str:
    """A label selector for the caller's own work, and that of whom they administer; "" for those who are no User."""
    me = await who_am_i(client)
    if me is None or not me.get("user"):
        return ""
    below = [name for name in (me.get("administers") or {}).get("users") or () if name != me["user"]]
    names = [me["user"], *below][:USERS_LISTED_MAX]
    return f"{Muster.USER}={names[0]}" if len(names) == 1 else f"{Muster.USER} in ({','.join(names)})"


# -- tokens -------------------------------------------------------------------------------------------------------------------


def token_id(hashed: str) -> str:
    """By which a token is named: the beginning of its hash, which tells nothing of the token."""
    return hashed[:ID_LEN]


async def require_own_server(s: Session) -> None:
    from muster.cli.asking import is_own

    if not await is_own(s.client):
        raise CliError(
            "users of this cluster log in as its API server has it (certificates, OIDC, service accounts); name those logins "
            "in spec.usernames of the User. Tokens like these are for the server of 'muster up'",
            ExitCode.USAGE,
        )


async def login_for(s: Session, name: str) -> str:
    """The login of a User. CliError when there is no such User."""
    from muster.objects.status import NotFound

    try:
        raw = await s.client.get(await s.client.resource("muster.dev", "User"), name)
    except NotFound:
        raise CliError(
            f"there is no User {name}; create it first (muster apply), or see 'muster user list'", ExitCode.NOT_FOUND
        ) from None
    logins = (raw.get("spec") or {}).get("usernames") or [name]
    return str(logins[0])


async def create_token(s: Session, name: str, login: str, expires_s: float) -> str:
    """Make a token good, and return its clear text, which is kept nowhere."""
    from muster.server.tokens import TOKEN_NAMESPACE, new_token, token_hash, token_secret

    clear = new_token(os.urandom(32))
    hashed = token_hash(clear)
    secret = token_secret(
        SECRET_PREFIX + token_id(hashed),
        hashed,
        login,
        (),
        f"login of User {name}",
        labels={Muster.USER: name},
        expires_s=expires_s,
    )
    await s.client.create(await s.client.resource("", "Secret"), secret, TOKEN_NAMESPACE)
    return clear


async def token_secrets(s: Session, name: str = "") -> list[Raw]:
    """The Secrets of users' tokens; of one user, if named."""
    from muster.server.tokens import TOKEN_NAMESPACE, identity_of_secret

    resource = await s.client.resource("", "Secret")
    found: list[Raw] = []
    continue_token = ""
    while True:
        page = await s.client.list(
            resource,
            TOKEN_NAMESPACE,
            label_selector=f"{Muster.USER}={name}" if name else Muster.USER,
            limit=500,
            continue_token=continue_token,
        )
        found += (raw for raw in page.items if identity_of_secret(raw) is not None)
        continue_token = page.continue_token
        if not continue_token:
            return found


def token_row(raw: Raw, now: float) -> list[str]:
    from muster.objects.meta import labels_of, metadata_of
    from muster.objects.time import format_time
    from muster.server.tokens import identity_of_secret

    found = identity_of_secret(raw)
    assert found is not None, "token_secrets gives only those that can be read"
    hashed, identity = found
    ends = identity.expires_s
    return [
        token_id(hashed),
        labels_of(raw).get(Muster.USER, ""),
        identity.user,
        "expired" if ends is not None and ends <= now else "good",
        str(metadata_of(raw).get("creationTimestamp") or ""),
        format_time(ends) if ends is not None else "never",
    ]


async def revoke_token(s: Session, which: str) -> str:
    """Delete what makes it good; `which` is its id or the token itself. Returns its id."""
    from muster.objects.status import NotFound
    from muster.server.tokens import TOKEN_NAMESPACE, TOKEN_PREFIX, token_hash

    found = token_id(token_hash(which)) if which.startswith(TOKEN_PREFIX) else which
    try:
        await s.client.delete(await s.client.resource("", "Secret"), SECRET_PREFIX + found, TOKEN_NAMESPACE)
    except NotFound:
        raise CliError(f"there is no token {found[:40]!r}; see 'muster user token list'", ExitCode.NOT_FOUND) from None
    return found
