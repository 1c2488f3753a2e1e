"""Putting Muster into a cluster and taking it out again: the steps behind `install` and `uninstall`.

What was there before and is somebody else's (a namespace, the CRDs of a Kuscia or Koordinator that runs already) is used and
left alone, both ways. Installing twice changes nothing the second time. Runs on the command's event loop, one step at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from muster.cli import manifests
from muster.cli.applying import Applier, delete_object, group_and_kind, wait_gone
from muster.cli.errors import CliError, ExitCode
from muster.cli.listing import preferred
from muster.cli.output import qualified_name
from muster.cli.session import Session
from muster.objects.catalog import CATALOG
from muster.objects.conditions import find_condition
from muster.objects.labels import Muster
from muster.objects.meta import finalizers_of, labels_of, name_of, namespace_of, owners_of
from muster.objects.requests import WriteOptions
from muster.objects.resources import Resource
from muster.objects.status import ApiError, Forbidden, MethodNotAllowed, NotFound, Raw

POLL_S = 0.2
_FINALIZERS = "muster.dev/"
CRD = ("apiextensions.k8s.io", "CustomResourceDefinition")
NAMESPACE = ("", "Namespace")
SELECTABLE_FIELDS_SINCE_MINOR = 30
Say = Callable[[str], None]

REMOVAL_ORDER: tuple[tuple[str, str], ...] = (
    # Webhooks first: without anything to answer them they would refuse every change of Muster's kinds.
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"),
    ("apps", "Deployment"),
    ("policy", "PodDisruptionBudget"),
    ("", "Service"),
    ("", "Secret"),
    ("coordination.k8s.io", "Lease"),
    ("rbac.authorization.k8s.io", "RoleBinding"),
    ("rbac.authorization.k8s.io", "Role"),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"),
    ("rbac.authorization.k8s.io", "ClusterRole"),
    ("", "ServiceAccount"),
)
AUTOMATIC = {
    ("", "Event"),
    ("events.k8s.io", "Event"),
    ("", "Endpoints"),
    ("discovery.k8s.io", "EndpointSlice"),
    ("metrics.k8s.io", "PodMetrics"),
}
"""Kinds that a cluster makes by itself; they do not keep a namespace alive."""


def is_ours(obj: Raw) -> bool:
    return labels_of(obj).get(manifests.MANAGED_LABEL) == manifests.MANAGED_VALUE


class Installer:
    def __init__(self, s: Session, options: manifests.InstallOptions, write: WriteOptions, say: Say) -> None:
        self._session = s
        self._options = options
        self._write = write
        self._say = say
        self._applier = Applier(s, write)

    async def run(self, custom: Sequence[Resource], controllers: Sequence[str], timeout_s: float) -> None:
        client = self._session.client
        budgets = await client.resource("policy", "PodDisruptionBudget")
        options = msgspec.structs.replace(self._options, budget_version=budgets.version)
        selectable = await client.minor_version() >= SELECTABLE_FIELDS_SINCE_MINOR
        definitions = manifests.crds(custom, selectable_fields=selectable)
        for definition in definitions:
            await self._apply(definition)
        if not self._write.dry_run:
            await self._wait_established([name_of(d) for d in definitions], timeout_s)
        for obj in manifests.everything(options, custom, controllers)[len(definitions) :]:
            await self._apply(obj)

    async def _apply(self, obj: Raw) -> None:
        resource = await self._applier.resource_of(obj)
        title = qualified_name(resource, name_of(obj))
        suffix = " (dry run)" if self._write.dry_run else ""
        if group_and_kind(obj) in (CRD, NAMESPACE) and not self._write.force:
            found = await self._find(resource, name_of(obj))
            if found is not None and not is_ours(found):
                self._say(f"{title} kept as it is: it is there already, and not from 'muster install'{suffix}")
                return
        try:
            done = await self._applier.apply(obj)
        except NotFound:
            # In a dry run the namespace does not come into being, and nothing can be tried inside it.
            if not self._write.dry_run:
                raise
            self._say(f"{title} created{suffix}")
            return
        except ApiError as e:
            raise type(e)(f"{title}: {e.message}", causes=e.causes) from e
        self._say(f"{title} {done.outcome}{suffix}")

    async def _find(self, resource: Resource, name: str) -> Raw | None:
        try:
            return await self._session.client.get(resource, name)
        except NotFound:
            return None

    async def _wait_established(self, names: Sequence[str], timeout_s: float) -> None:
        """Until the API server serves all of the kinds."""
        definitions = await self._session.client.resource(*CRD)
        waiting = dict.fromkeys(names, "no condition yet")
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    page = await self._session.client.list(definitions)
                    for crd in page.items:
                        if name_of(crd) in waiting:
                            waiting[name_of(crd)] = _what_is_missing(crd)
                    waiting = {name: why for name, why in waiting.items() if why}
                    if not waiting:
                        self._session.client.discovery.invalidate()
                        self._say(f"all {len(names)} kinds are established")
                        return
                    await asyncio.sleep(POLL_S)
        except TimeoutError as e:
            name, why = next(iter(waiting.items()))
            raise CliError(
                f"{len(waiting)} of {len(names)} CustomResourceDefinitions are not established after {timeout_s:g} s, "
                f"such as {name}: {why}; wait longer with --timeout, or look with 'muster describe crd {name}'",
                ExitCode.TIMEOUT,
            ) from e


def _what_is_missing(crd: Raw) -> str:
    conditions = (crd.get("status") or {}).get("conditions") or []
    for kind in ("NamesAccepted", "Established"):
        found = find_condition(conditions, kind)
        if found is None:
            return f"{kind} is not set yet"
        if found.get("status") != "True":
            return f"{kind} is {found.get('status')}: {found.get('message')}"
    return ""


class Found(msgspec.Struct, frozen=True):
    resource: Resource
    object: Raw

    @property
    def title(self) -> str:
        return qualified_name(self.resource, name_of(self.object))


class Uninstaller:
    def __init__(self, s: Session, say: Say, *, dry_run: bool) -> None:
        self._session = s
        self._say = say
        self._options = WriteOptions(dry_run=dry_run, field_manager=manifests.FIELD_MANAGER)

    async def custom_objects(self) -> dict[str, int]:
        """How many objects of the kinds that we would remove exist, by kind."""
        counts: dict[str, int] = {}
        for definition in await self._ours(*CRD):
            spec = definition.object.get("spec") or {}
            kind = str((spec.get("names") or {}).get("kind", ""))
            try:
                resource = await self._session.client.resource(str(spec.get("group", "")), kind)
                page = await self._session.client.list(resource, limit=1)
            except NotFound:
                continue
            count = len(page.items) + (page.remaining or 0)
            if count:
                counts[resource.qualified] = count
        return counts

    async def run(self, *, keep_crds: bool, timeout_s: float) -> int:
        """Remove everything that `install` made; how many objects that were."""
        leaving = [found for kind in REMOVAL_ORDER for found in await self._ours(*kind)]
        leaving += [] if keep_crds else await self._ours(*CRD)
        for namespace in await self._ours(*NAMESPACE):
            others = await self._others_in(name_of(namespace.object))
            if others:
                self._say(f"{namespace.title} kept: it also holds {', '.join(others)}, which are not from 'muster install'")
            else:
                leaving.append(namespace)
        gone = [found for found in leaving if await self._delete(found)]
        if gone and not self._options.dry_run:
            await self._let_go(keep_crds=keep_crds)
            await self._wait(gone, timeout_s)
        return len(gone)

    async def _let_go(self, *, keep_crds: bool) -> None:
        """Nobody is left who would take Muster's finalizers off: what carries them would stay for ever once it is deleted. With
        the kinds kept, the ledger may still want to note the runs of pods."""
        kinds = {("", "Pod")} if keep_crds else {("", "Pod"), *((one.group, one.kind) for one in custom_kinds())}
        for group, kind in sorted(kinds):
            try:
                resource = await self._session.client.resource(group, kind)
                held = [obj async for obj in self._held(resource)]
            except (NotFound, MethodNotAllowed):
                continue
            if keep_crds and held:
                self._say(
                    f"{len(held)} pods keep the finalizer {Muster.LEDGER_FINALIZER}: when they end, they go once a controller "
                    "runs again and has noted them; 'muster uninstall' without --keep-crds takes it off"
                )
                continue
            for obj in held:
                left = [one for one in finalizers_of(obj) if not one.startswith(_FINALIZERS)]
                with contextlib.suppress(NotFound):
                    await self._session.client.patch(
                        resource, name_of(obj), {"metadata": {"finalizers": left}}, namespace_of(obj) or None, self._options
                    )

    async def _held(self, resource: Resource) -> AsyncIterator[Raw]:
        token = ""
        while True:
            page = await self._session.client.list(resource, limit=500, continue_token=token)
            for obj in page.items:
                if any(one.startswith(_FINALIZERS) for one in finalizers_of(obj)):
                    yield obj
            token = page.continue_token
            if not token:
                return

    async def _ours(self, group: str, kind: str) -> list[Found]:
        try:
            resource = await self._session.client.resource(group, kind)
        except NotFound:
            return []
        selector = f"{manifests.MANAGED_LABEL}={manifests.MANAGED_VALUE}"
        page = await self._session.client.list(resource, label_selector=selector)
        return [Found(resource, item) for item in page.items]

    async def _others_in(self, namespace: str) -> list[str]:
        """A few of the objects in `namespace` that neither `install` nor the cluster itself put there."""
        found: list[str] = []
        for resource in preferred(await self._session.client.resources()):
            is_listed = resource.namespaced and "list" in resource.verbs and "delete" in resource.verbs
            if not is_listed or (resource.group, resource.kind) in AUTOMATIC:
                continue
            try:
                page = await self._session.client.list(resource, namespace, limit=100)
            except (NotFound, Forbidden, MethodNotAllowed):
                continue
            found += [qualified_name(resource, name_of(o)) for o in page.items if not _is_automatic(resource, o)]
            if len(found) >= 3:
                break
        return list(dict.fromkeys(found))[:3]

    async def _delete(self, found: Found) -> bool:
        try:
            await delete_object(
                self._session,
                found.resource,
                name_of(found.object),
                namespace_of(found.object) or None,
                self._options,
                propagation="Background",
            )
        except NotFound:
            return False
        self._say(f"{found.title} deleted{' (dry run)' if self._options.dry_run else ''}")
        return True

    async def _wait(self, leaving: Sequence[Found], timeout_s: float) -> None:
        tasks = {
            asyncio.create_task(
                wait_gone(self._session, f.resource, name_of(f.object), namespace_of(f.object) or None, _uid(f.object))
            ): f
            for f in leaving
        }
        if not tasks:
            return
        done, late = await asyncio.wait(tasks, timeout=timeout_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for task in done:
            task.result()
        if late:
            first = min(tasks[task].title for task in late)
            raise CliError(
                f"{len(late)} of {len(tasks)} objects still exist after {timeout_s:g} s, such as {first}; "
                "run 'muster uninstall' again, with a longer --timeout, or see what holds them with 'muster describe'",
                ExitCode.TIMEOUT,
            )


def _uid(obj: Raw) -> str:
    return str((obj.get("metadata") or {}).get("uid", ""))


def _is_automatic(resource: Resource, obj: Raw) -> bool:
    if is_ours(obj) or owners_of(obj):
        return True
    key = (resource.group, resource.kind, name_of(obj))
    if key in (("", "ServiceAccount", "default"), ("", "ConfigMap", "kube-root-ca.crt")):
        return True
    return resource.kind == "Secret" and obj.get("type") == "kubernetes.io/service-account-token"


def custom_kinds() -> tuple[Resource, ...]:
    return CATALOG.custom
