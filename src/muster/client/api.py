"""The client of a Kubernetes-style API: every verb on every kind, discovery, and what belongs to pods and workloads.

Methods take the parameters of the Store contract, and a few more that only a client needs. Objects go in and out as raw JSON;
`list_views` and `watch_views` decode typed views straight from the bytes. Nothing is assumed: a namespaced kind needs its
namespace.

One `ApiClient` belongs to one event loop, and any number of its tasks may use it at once. Failures are `ApiError` (see also
`muster.client.errors`). A watch here ends, or raises, when its connection does; `KubernetesStore` adds resuming.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from muster.client import requests
from muster.client.decode import decode_events
from muster.client.messages import Request
from muster.client.retry import backoff_s
from muster.client.verbs import ObjectClient
from muster.objects.meta import uid_of
from muster.objects.requests import DEFAULT_WRITE, PatchType, Preconditions, WatchEvent, WriteOptions
from muster.objects.resources import Resource
from muster.objects.status import ApiError, BadRequest, Conflict, NotFound, Raw, Timeout

_PODS = Resource(group="", version="v1", kind="Pod", plural="pods")
_SERVICE_ACCOUNTS = Resource(group="", version="v1", kind="ServiceAccount", plural="serviceaccounts")


class ApiClient(ObjectClient):
    """Everything. `async with await ApiClient.from_kubeconfig() as client: ...`"""

    # --- what the server is ---------------------------------------------------------------------------------------------------

    async def version(self) -> Raw:
        """`/version`: major, minor, gitVersion, ..."""
        return await self._object(Request(method="GET", path="/version"))

    async def minor_version(self) -> int:
        """The 27 of 1.27, asked for once. 0 when the server does not say."""
        if self._minor_version is None:
            digits = re.match(r"\d+", str((await self.version()).get("minor", "")))
            self._minor_version = int(digits[0]) if digits else 0
        return self._minor_version

    async def is_ready(self) -> bool:
        """Whether `/readyz` says so. False for every failure."""
        try:
            await self._send(Request(method="GET", path="/readyz", accept="*/*"), timeout_s=5.0)
        except ApiError:
            return False
        return True

    async def resources(self, *, refresh: bool = False) -> list[Resource]:
        """All kinds in all versions that the server offers, preferred versions first."""
        return await self.discovery.resources(refresh=refresh)

    async def resource(self, group: str, kind: str) -> Resource:
        """The version of a kind that the server prefers (policy/v1beta1 on an old one). NotFound when it has none."""
        return await self.discovery.resource(group, kind)

    async def find(self, word: str) -> Resource:
        """The resource that a user means by `po`, `pods`, `Pod`, `deployments.apps` or `deployments.v1.apps`."""
        return await self.discovery.find(word)

    async def openapi(self, path: str = "/openapi/v2") -> Raw:
        """An OpenAPI document: `/openapi/v2` is everything in one; `/openapi/v3` lists the paths of one per group version."""
        return await self._object(Request(method="GET", path=path))

    async def join_ca(self) -> bytes:
        """The certificate (PEM) of the CA that signs the certificates of nodes that join. NotFound where none can join."""
        return (await self._send(Request(method="GET", path="/muster/v1/ca", accept="*/*"))).body

    # --- tables --------------------------------------------------------------------------------------------------------------

    async def table(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        name: str = "",
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
    ) -> Raw:
        """The server's own rendering for people: a `Table` with columns and rows, of one object or of a list."""
        request = requests.list_request(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            limit=limit,
            continue_token=continue_token,
        )
        if name:
            request = Request(method="GET", path=requests.object_path(resource, name, namespace))
        return await self._object(msgspec.structs.replace(request, accept=requests.TABLE))

    async def watch_tables(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str = "",
        timeout_s: float | None = None,
    ) -> AsyncGenerator[WatchEvent, None]:
        """As `watch`, each event's object a `Table` with the changed row."""
        request = requests.watch_request(
            resource,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            resource_version=resource_version,
            bookmarks=False,
            timeout_s=timeout_s,
        )
        request = msgspec.structs.replace(request, accept=requests.TABLE)
        async with aclosing(self._lines(request, timeout_s)) as batches:
            async for lines in batches:
                for event in decode_events(lines, request, is_versioned=False):
                    yield event

    # --- pods -----------------------------------------------------------------------------------------------------------------

    async def bind(
        self,
        pod: str,
        namespace: str,
        node: str,
        *,
        uid: str = "",
        annotations: Mapping[str, str] | None = None,
        is_followed: bool = False,
    ) -> None:
        """Set spec.nodeName once. Conflict when the pod is bound, deleting, or has another uid.

        When the answer to an attempt is lost, the attempt is repeated, and a pod that is bound to `node` by then is a success.
        `is_followed`: the caller follows pods by a watch, so on servers that do not check the uid no read is spent on that.
        """
        if uid and not is_followed and not await self._binding_checks_uid():
            await self._require_uid(pod, namespace, uid)
        request = Request(
            method="POST",
            path=requests.object_path(_PODS, pod, namespace, "binding"),
            body=requests.encode(requests.binding(pod, namespace, node, uid=uid, annotations=annotations)),
        )
        policy = self.transport.limits.retry
        is_unsure = False
        for attempt in range(1, policy.attempts_max + 1):
            try:
                await self._send(request)  # the answer is a Status, whatever the published schema says
            except Conflict:
                if is_unsure and await self._is_bound(pod, namespace, node, uid):
                    return
                raise
            except Timeout:
                if attempt == policy.attempts_max:
                    raise
                is_unsure = True
                await asyncio.sleep(backoff_s(policy, attempt, self.transport.spread()))
            else:
                return

    async def evict(
        self, pod: str, namespace: str, *, grace_period_s: int | None = None, uid: str = "", dry_run: bool = False
    ) -> None:
        """Delete unless a PodDisruptionBudget forbids it now (TooManyRequests)."""
        options = requests.delete_options(
            grace_period_s=grace_period_s, preconditions=Preconditions(uid=uid) if uid else None, dry_run=dry_run
        )
        version = await self.discovery.body_version("", "v1", "pods/eviction", "policy/v1")
        request = Request(
            method="POST",
            path=requests.object_path(_PODS, pod, namespace, "eviction"),
            params=[("dryRun", "All")] if dry_run else [],
            body=requests.encode(requests.eviction(pod, namespace, version, options)),
            retry_refusals=False,
        )
        await self._send(request)

    async def request_token(self, account: str, namespace: str, spec: Mapping[str, Any]) -> Raw:
        """A token of a service account: the answered TokenRequest, whose status has it."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": dict(spec)}
        path = requests.object_path(_SERVICE_ACCOUNTS, account, namespace, "token")
        return await self._object(Request(method="POST", path=path, body=requests.encode(body)))

    async def logs(
        self,
        pod: str,
        namespace: str,
        *,
        container: str = "",
        follow: bool = False,
        previous: bool = False,
        timestamps: bool = False,
        tail_lines: int | None = None,
        since_s: int | None = None,
        limit_bytes: int | None = None,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """The lines of a container's log, without their newlines; with `follow` as they are written."""
        params = [
            (name, "true")
            for name, is_set in (("follow", follow), ("previous", previous), ("timestamps", timestamps))
            if is_set
        ]
        params += [("container", container)] if container else []
        numbers = (("tailLines", tail_lines), ("sinceSeconds", since_s), ("limitBytes", limit_bytes))
        params += [(name, str(value)) for name, value in numbers if value is not None]
        path = requests.object_path(_PODS, pod, namespace, "log")
        request = Request(method="GET", path=path, params=params, accept="*/*")
        async with (
            self.transport.stream(request, timeout_s=timeout_s) as stream,
            aclosing(stream.lines(needs_last_newline=False)) as batches,
        ):
            async for batch in batches:
                for line in batch:
                    yield line

    # --- workloads ------------------------------------------------------------------------------------------------------------

    async def get_scale(self, resource: Resource, name: str, namespace: str | None = None) -> Raw:
        """The `Scale` of a workload: spec.replicas and status.replicas."""
        return await self.get(resource, name, namespace, subresource="scale")

    async def scale(
        self,
        resource: Resource,
        name: str,
        replicas: int,
        namespace: str | None = None,
        options: WriteOptions = DEFAULT_WRITE,
    ) -> Raw:
        """Set the number of replicas; the `Scale` as it is afterwards."""
        if replicas < 0:
            raise BadRequest(f"replicas of {resource.qualified} {name} must be 0 or more, not {replicas}", name=name)
        patch: Raw = {"spec": {"replicas": replicas}}
        return await self.patch(resource, name, patch, namespace, options, patch_type=PatchType.MERGE, subresource="scale")

    # --- inside ---------------------------------------------------------------------------------------------------------------

    _minor_version: int | None = None

    async def _binding_checks_uid(self) -> bool:
        """Servers before 1.23, 1.25 and 1.26 bind whatever pod has the name. Then this side looks first, as near as it can."""
        minor = await self.minor_version()
        return minor in (23, 24) or minor >= 27

    async def _require_uid(self, pod: str, namespace: str, uid: str) -> None:
        found = uid_of(await self.get(_PODS, pod, namespace))
        if found != uid:
            raise Conflict(
                f'pod "{pod}" in namespace "{namespace}" has uid {found}, not {uid}: it was replaced; read it again',
                kind="pods",
                name=pod,
                uid=found,
            )

    async def _is_bound(self, pod: str, namespace: str, node: str, uid: str) -> bool:
        try:
            found = await self.get(_PODS, pod, namespace)
        except NotFound:
            return False
        spec = found.get("spec")
        return isinstance(spec, dict) and spec.get("nodeName") == node and (not uid or uid_of(found) == uid)
