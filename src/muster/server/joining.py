"""How a machine becomes a node: a token against a certificate, over three paths that need no user.

    GET  /muster/v1/ca             the CA's certificate in PEM; whoever fetches it compares its hash with `--ca-hash`
    POST /muster/v1/nodes/join     {"domain", "name", "token", "csr", "machineID"} -> {"node", "certificate", "ca"}
    POST /muster/v1/nodes/renew    {"csr"}, with a certificate that is still good -> the same

The server says who the certificate stands for: CN=system:node:<name>, O=system:nodes, O=muster:party:<domain>. Of the request
for it (CSR) only the key counts, and those host names and addresses that can't be mistaken for this server.

One transaction spends the token and puts the Node there, with the serial number of its certificate in the annotation
`muster.dev/joined`. A certificate is good while the Node lists it (see `node_index`), so deleting the Node revokes it. The
present certificate and the one before are good: an agent that crashes between asking and keeping is not locked out.

Who has no valid token learns nothing: an unknown party, another party's token and no token at all get the same answer; that a
name is taken is told after the token was found good. A name belongs to the machine that took it (`machineID`), until an
administrator deletes the Node.

Concurrency: on the event loop; two nodes with one token race for one write, and one of them loses. Limits: size of the body,
time for it, requests at once, and rates by address and in all (`ServerLimits.join_*`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from muster.controllers import node_tokens
from muster.controllers.domain_tokens import ENTROPY_BYTES, TokenProblem, mint, new_join_token, spend
from muster.objects.labels import Kuscia, KusciaLabel, Muster
from muster.objects.meta import is_deleting, resource_version_of, uid_of
from muster.objects.rules.report import obj
from muster.objects.status import (
    AlreadyExists,
    Conflict,
    Forbidden,
    NotFound,
    Raw,
    RequestEntityTooLarge,
    Timeout,
    TooManyRequests,
)
from muster.objects.time import Clock, format_time
from muster.server.certificates import cert_pem
from muster.server.config import ServerLimits
from muster.server.join_limits import JoinRates
from muster.server.join_requests import Join, Renew, check, decoded, names_for, read_csr
from muster.server.logs import logger
from muster.server.metrics import Metrics
from muster.server.node_index import (
    NODE_USER_PREFIX,
    NODES_GROUP,
    PARTY_GROUP_PREFIX,
    SERIALS_MAX,
    Joined,
    NodeIndex,
    joined_of,
    node_of_user,
    serial_of_peer,
    serial_text,
)
from muster.server.pki import Pki
from muster.store.contract import Operation, Preconditions, WriteOptions
from muster.store.embedded import EmbeddedStore
from muster.store.embedded.admission import Actor

log = logger(__name__)

CA_PATH: Final = "/muster/v1/ca"
JOIN_PATH: Final = "/muster/v1/nodes/join"
RENEW_PATH: Final = "/muster/v1/nodes/renew"
_TRIES_MAX: Final = 5
_OPTIONS: Final = WriteOptions(field_manager="muster-server")


class _Tokens(msgspec.Struct, frozen=True):
    """The tokens of a party as they were read, and the write that replaces them."""

    listed: object
    write: Callable[[list[Raw]], Operation]
    domain_uid: str = ""


class Joining:
    """See the module."""

    def __init__(
        self, store: EmbeddedStore, pki: Pki, nodes: NodeIndex, *, clock: Clock, limits: ServerLimits, metrics: Metrics
    ) -> None:
        self._store = store
        self._pki = pki
        self._nodes = nodes
        self._clock = clock
        self._limits = limits
        self._metrics = metrics
        self._rates = JoinRates(limits)
        self._under_way = 0

    def routes(self) -> list[BaseRoute]:
        return [
            Route(CA_PATH, self._ca, methods=["GET"]),
            Route(JOIN_PATH, self._join, methods=["POST"]),
            Route(RENEW_PATH, self._renew, methods=["POST"]),
        ]

    async def _ca(self, request: Request) -> Response:
        return Response(self._pki.ca_pem, media_type="application/x-pem-file")

    async def _join(self, request: Request) -> Response:
        return await self._limited(request, self._join_now)

    async def _renew(self, request: Request) -> Response:
        return await self._limited(request, self._renew_now)

    async def _limited(self, request: Request, serve: Callable[[Request, bytes], Any]) -> Response:
        address = request.client.host if request.client else ""
        wait_s = self._rates.take(address, asyncio.get_running_loop().time())
        # Nobody holds a place whose body does not come: anybody can begin a request.
        body = b"" if wait_s else await self._read(request)
        if wait_s or self._under_way >= self._limits.join_at_once_max:
            self._metrics.refused.labels("join_per_minute_max" if wait_s else "join_at_once_max").inc()
            raise TooManyRequests("too many nodes are joining, please try again later", retry_after_s=max(1, round(wait_s)))
        self._under_way += 1
        try:
            answer: Response = await serve(request, body)
            return answer
        finally:
            self._under_way -= 1

    async def _read(self, request: Request) -> bytes:
        most = self._limits.join_body_bytes_max
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_timeout_s):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > most:
                        raise RequestEntityTooLarge(f"the body is larger than {most} bytes; send the CSR and the token only")
        except TimeoutError:
            raise Timeout(f"the body did not arrive within {self._limits.body_timeout_s:g} s") from None
        return bytes(body)

    # --- joining

    async def _join_now(self, request: Request, body: bytes) -> Response:
        asked = decoded(body, Join)
        check(asked, self._pki.own_names)
        csr = read_csr(asked.csr)
        notes = request.scope.setdefault("muster.notes", {})
        notes.update(node=asked.name, domain=asked.domain)
        for _ in range(_TRIES_MAX):
            try:
                certificate, token_id = await self._admit(asked, csr)
            except (AlreadyExists, Conflict) as error:
                if isinstance(error, NameTaken):
                    raise
                continue  # somebody else wrote the tokens or the Node in between: look again
            notes["token"] = token_id
            log.info("a node joined", node=asked.name, domain=asked.domain, token=token_id)
            return self._answer(asked.name, certificate)
        raise Conflict(f'node "{asked.name}": too many nodes are joining with the same tokens; try again')

    async def _admit(self, asked: Join, csr: x509.CertificateSigningRequest) -> tuple[x509.Certificate, str]:
        tokens = await self._tokens(asked.domain)
        now = self._clock()
        try:
            spent = spend(tokens.listed, asked.token, now)
        except TokenProblem as problem:
            raise Forbidden(_said(problem, asked.domain)) from None
        node = await self._node(asked.name)
        known = _owned(node, asked)
        certificate = self._sign(asked.name, asked.domain, csr)
        joined = Joined(
            serials=(serial_text(certificate.serial_number),),
            machine_id=asked.machine_id,
            domain=asked.domain,
            domain_uid=tokens.domain_uid,
            token=spent.token_id,
            at=format_time(now),
        )
        write = self._create_node(asked, joined, now) if node is None or known is None else self._keep(node, joined)
        await self._store.transaction_records([tokens.write(spent.tokens), write], _OPTIONS)
        return certificate, spent.token_id

    async def _tokens(self, domain: str) -> _Tokens:
        if not domain:
            return await _node_tokens(self._store)
        return await _domain_tokens(self._store, domain)

    async def _node(self, name: str) -> Raw | None:
        try:
            return await self._store.get(self._store.catalog.by_kind("", "Node"), name)
        except NotFound:
            return None

    def _create_node(self, asked: Join, joined: Joined, now: float) -> Operation:
        labels = {KusciaLabel.NODE_DOMAIN: asked.domain, KusciaLabel.NODE_NAMESPACE: asked.domain} if asked.domain else {}
        taints = [{"key": Kuscia.TAINT_AGENT, "value": "v1", "effect": "NoSchedule"}] if asked.domain else []
        ready = {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NodeStatusNeverUpdated",
            "message": "the node has joined; its agent has not reported yet",
            "lastTransitionTime": format_time(now),
        }
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": asked.name, "labels": labels, "annotations": {Muster.JOINED: joined.to_text()}},
            "spec": {"taints": taints} if taints else {},
            "status": {"conditions": [ready]},
        }
        return Operation(verb="create", resource=self._store.catalog.by_kind("", "Node"), object=node)

    def _keep(self, node: Raw, joined: Joined) -> Operation:
        return Operation(
            verb="patch",
            resource=self._store.catalog.by_kind("", "Node"),
            name=str(node["metadata"]["name"]),
            patch={"metadata": {"annotations": {Muster.JOINED: joined.to_text()}}},
            preconditions=Preconditions(uid_of(node), resource_version_of(node)),
        )

    # --- renewing

    async def _renew_now(self, request: Request, body: bytes) -> Response:
        actor: Actor = request.scope["muster.actor"]
        name = node_of_user(actor.user, actor.groups)
        serial = serial_of_peer(request.scope.get("muster.peer"))
        if not name or not serial:
            raise Forbidden(f'only a node with a certificate of its own can renew it; "{actor.user}" is none')
        csr = read_csr(decoded(body, Renew).csr)
        for _ in range(_TRIES_MAX):
            self._nodes.check_certificate(name, serial)
            node = await self._node(name)
            joined = joined_of(node) if node is not None else None
            if node is None or joined is None:
                continue  # it went in between; the check says so
            certificate = self._sign(name, joined.domain, csr)
            serials = (serial, serial_text(certificate.serial_number))[-SERIALS_MAX:]
            write = self._keep(node, msgspec.structs.replace(joined, serials=serials))
            try:
                await self._store.transaction_records([write], _OPTIONS)
            except Conflict:
                continue
            log.info("a node's certificate was renewed", node=name)
            return self._answer(name, certificate)
        raise Conflict(f'node "{name}" changes too quickly for its certificate to be renewed; try again')

    # --- certificates

    def _sign(self, name: str, domain: str, csr: x509.CertificateSigningRequest) -> x509.Certificate:
        groups = [NODES_GROUP, *([PARTY_GROUP_PREFIX + domain] if domain else [])]
        names = names_for(csr, name, self._pki.own_names)
        key: CertificatePublicKeyTypes = csr.public_key()
        return self._pki.sign_node(key, user=NODE_USER_PREFIX + name, groups=groups, names=names)

    def _answer(self, name: str, certificate: x509.Certificate) -> Response:
        body = {"node": name, "certificate": cert_pem(certificate).decode(), "ca": self._pki.ca_pem.decode()}
        return Response(msgspec.json.encode(body), media_type="application/json", headers={"cache-control": "no-store"})


class NameTaken(Conflict):
    """The name belongs to another machine; trying again changes nothing."""


# -- tokens -------------------------------------------------------------------------------------------------------------------


async def _domain_tokens(store: EmbeddedStore, domain: str) -> _Tokens:
    """Of a party that is not there: none, so that the answer is that to a wrong token."""
    resource = store.catalog.by_kind("kuscia.secretflow", "Domain")
    try:
        raw = await store.get(resource, domain)
    except NotFound:
        return _Tokens([], _never)
    preconditions = Preconditions(uid_of(raw), resource_version_of(raw))

    def write(tokens: list[Raw]) -> Operation:
        patch = {"status": {"deployTokenStatuses": tokens}}
        return Operation(
            verb="patch", resource=resource, name=domain, patch=patch, subresource="status", preconditions=preconditions
        )

    listed = [] if is_deleting(raw) else obj(raw, "status").get("deployTokenStatuses")
    return _Tokens(listed, write, uid_of(raw))


def _never(tokens: list[Raw]) -> Operation:
    raise AssertionError("there are no tokens that could have been spent")


async def _node_tokens(store: EmbeddedStore) -> _Tokens:
    resource = store.catalog.by_kind("", "Secret")
    try:
        raw = await store.get(resource, node_tokens.SECRET, node_tokens.NAMESPACE)
    except NotFound:
        return _Tokens(
            [],
            lambda tokens: Operation(
                verb="create", resource=resource, namespace=node_tokens.NAMESPACE, object=node_tokens.secret_with(tokens)
            ),
        )
    preconditions = Preconditions(uid_of(raw), resource_version_of(raw))
    return _Tokens(
        node_tokens.tokens_in(raw),
        lambda tokens: Operation(
            verb="patch",
            resource=resource,
            name=node_tokens.SECRET,
            namespace=node_tokens.NAMESPACE,
            patch={"data": node_tokens.data_with(tokens)},
            preconditions=preconditions,
        ),
    )


async def mint_token(
    store: EmbeddedStore, domain: str, clock: Clock, *, lifetime_s: int = 600, entropy: Callable[[int], bytes] = os.urandom
) -> str:
    """A token for one node of `domain` ("": of no party), for agents that are started in this process's charge.

    NotFound when there is no such Domain; TokenProblem when it has too many tokens.
    """
    for _ in range(_TRIES_MAX):
        tokens = await (_domain_tokens(store, domain) if domain else _node_tokens(store))
        if domain and not tokens.domain_uid:
            raise NotFound(f'Domain "{domain}" not found; create it before its nodes join')
        clear = new_join_token(entropy(ENTROPY_BYTES))
        listed = mint(tokens.listed, clear, clock(), lifetime_s=lifetime_s)
        try:
            await store.transaction_records([tokens.write(listed)], _OPTIONS)
            return clear
        except (AlreadyExists, Conflict):
            continue
    raise Conflict(f'the tokens of "{domain or "no party"}" are written by somebody else all the time; try again')


def _said(problem: TokenProblem, domain: str) -> str:
    text = f"joining is refused: {problem}"
    if not domain:
        text = text.replace("muster domain token create DOMAIN", "muster node token create").replace(" of the party", "")
    return text


def _owned(node: Raw | None, asked: Join) -> Joined | None:
    """What the Node of this name says about who joined. NameTaken when that was somebody else."""
    if node is None:
        return None
    known, way_out = joined_of(node), "choose another name with --name, or let an administrator run: muster node forget"
    if known is None:
        raise NameTaken(f'node "{asked.name}" exists and did not join with a token; {way_out} {asked.name}')
    if known.machine_id != asked.machine_id:
        raise NameTaken(f'the name "{asked.name}" belongs to another machine; {way_out} {asked.name}')
    if known.domain != asked.domain:
        owner = f'party "{known.domain}"' if known.domain else "no party"
        raise NameTaken(f'node "{asked.name}" is a node of {owner}; {way_out} {asked.name}')
    if is_deleting(node):
        raise NameTaken(f'node "{asked.name}" is being deleted; try again when it is gone')
    return known
