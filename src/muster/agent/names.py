"""Names of services inside pods: the part of a pod's hosts file that says where peers are, and who keeps it up to date.

    <service>.<namespace>.svc, ...svc.cluster.local          of every Service, for everyone
    <host>.<service>.<namespace>.svc, ...svc.cluster.local   of every pod with `hostname` whose `subdomain` is the service
    <service>, <service>.<namespace>, <host>.<service>, <host>.<service>.<namespace>   within the same namespace only

Names without `.svc` stay within their namespace: otherwise a party whose namespace is called `svc` could name a host as another
party's service is named. A name stands for the addresses of its ready or published endpoints. An ExternalName service is an
alias where it names another service, or an address; other names are for DNS, which a hosts file can't ask.

`service_lines` is pure. `NameKeeper` follows Services and Endpoints on the agent's event loop; files are written in a thread.

Invariants:
- what stands above the mark in a hosts file is the pod's own and is never touched; all below it is written here, in place (the
  file is mounted into containers, so it must stay the same file);
- no more than `BYTES_MAX` is written; own names come first, and a last line says how much was left out.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from muster.agent.layout import Layout
from muster.objects.status import ApiError
from muster.objects.view import View
from muster.store.backoff import Backoff
from muster.store.contract import Store
from muster.store.hub import InformerHub
from muster.store.informer import Change, Informer

log = logging.getLogger(__name__)

BYTES_MAX: Final = 1024 * 1024
ADDRESSES_MAX: Final = 32
"""Of one name: a client tries a few, never hundreds."""
MARK: Final = "# Services, kept up to date by the node's agent. Lines below are written anew."
_DOMAIN: Final = "cluster.local"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_RESERVED: Final = frozenset({"localhost", "ip6-localhost", "ip6-loopback", "localhost.localdomain"})
_ALIAS: Final = re.compile(r"([-a-z0-9]+)\.([-a-z0-9]+)\.svc(\.cluster\.local)?\.?")
_FILE_BYTES_MAX: Final = 2 * BYTES_MAX
_DEBOUNCE_S: Final = 0.1
_LOOK_S: Final = 0.5
"""How often pods that nobody told about are looked for."""
_RETRY: Final = Backoff(base_s=1.0, max_s=30.0)

Key = tuple[str, str]
"""Namespace and name of a service."""


class Backends(msgspec.Struct, frozen=True):
    """Where a service is: addresses, those of them that have a host name, or the name that it stands for."""

    addresses: tuple[str, ...] = ()
    hosts: tuple[tuple[str, str], ...] = ()
    """Host name and address."""
    external_name: str = ""


def service_lines(namespace: str, services: Mapping[Key, Backends], bytes_max: int = BYTES_MAX) -> str:
    """The lines for pods of `namespace`: those of their own namespace first, each in a fixed order."""
    lines: list[str] = []
    size, left_out = 0, 0
    for key in sorted(services, key=lambda key: (key[0] != namespace, key)):
        own = [line for line in _lines(namespace, key, services) if line]
        bytes_ = sum(len(line) + 1 for line in own)
        if left_out or size + bytes_ > bytes_max:
            left_out += 1
            continue
        size += bytes_
        lines += own
    if left_out:
        lines.append(f"# {left_out} more services are left out: a hosts file of more than {bytes_max} bytes is of no use")
    return "".join(f"{line}\n" for line in lines)


def _lines(namespace: str, key: Key, services: Mapping[Key, Backends]) -> Iterable[str]:
    backends = _resolved(services, key)
    is_own = key[0] == namespace
    for address in backends.addresses[:ADDRESSES_MAX]:
        yield _line(address, _names(key[1], key[0], is_own=is_own))
    for host, address in backends.hosts:
        yield _line(address, _names(f"{host}.{key[1]}", key[0], is_own=is_own))


def _resolved(services: Mapping[Key, Backends], key: Key) -> Backends:
    """An alias is followed once: one that leads to another alias leads nowhere."""
    found = services[key]
    if not found.external_name:
        return found
    if _is_address(found.external_name):
        return Backends(addresses=(found.external_name,))
    alias = _ALIAS.fullmatch(found.external_name)
    other = services.get((alias[2], alias[1])) if alias else None
    return Backends(addresses=other.addresses) if other is not None and not other.external_name else Backends()


def _names(name: str, namespace: str, *, is_own: bool) -> list[str]:
    whole = f"{name}.{namespace}.svc"
    return [f"{whole}.{_DOMAIN}", whole, *([f"{name}.{namespace}", name] if is_own else [])]


def _line(address: str, names: Iterable[str]) -> str:
    """Empty when there is nothing that may stand in a hosts file."""
    fit = [name for name in names if _NAME.fullmatch(name) and name not in _RESERVED]
    return f"{address}\t{' '.join(fit)}" if fit and _is_address(address) else ""


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def with_services(present: str, lines: str) -> str:
    """A hosts file with these lines below the mark, and what it had above it."""
    own, _, _ = present.partition(MARK)
    if own and not own.endswith("\n"):
        own += "\n"
    return f"{own}{MARK}\n{lines}"


def rewrite(path: Path, lines: str) -> bool:
    """Put the lines into this very file. Whether it is there."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    with os.fdopen(fd, "r+b", buffering=0) as file:
        present = file.read(_FILE_BYTES_MAX) or b""
        wanted = with_services(present.decode("utf-8", "replace"), lines).encode()
        if wanted != present:
            # Written over, then cut: whoever reads meanwhile finds whole lines, old or new, nearly always.
            os.pwrite(fd, wanted, 0)
            os.ftruncate(fd, len(wanted))
    return True


# -- what is read of the objects ---------------------------------------------------------------------------------------------


class ServiceSpec(View):
    type: str = "ClusterIP"
    external_name: str = ""


class ServiceView(View):
    spec: ServiceSpec = msgspec.field(default_factory=ServiceSpec)


class Address(View):
    ip: str = ""
    hostname: str = ""


class Subset(View):
    addresses: list[Address] = msgspec.field(default_factory=list)


class EndpointsView(View):
    subsets: list[Subset] = msgspec.field(default_factory=list)


def backends(service: ServiceView, endpoints: EndpointsView | None) -> Backends:
    if service.spec.type == "ExternalName":
        return Backends(external_name=service.spec.external_name)
    found = [address for subset in (endpoints.subsets if endpoints else ()) for address in subset.addresses]
    addresses = tuple(dict.fromkeys(address.ip for address in found))
    hosts = tuple(dict.fromkeys((address.hostname, address.ip) for address in found if address.hostname))
    return Backends(addresses=addresses, hosts=hosts)


class NameKeeper:
    """Keeps the hosts files of this node's pods. `pods` gives the pods that are here: uid and namespace.

    `fill` may be called as soon as a pod's hosts file is there, so that its first process finds the names.
    """

    def __init__(self, store: Store, layout: Layout, pods: Callable[[], Iterable[tuple[str, str]]]) -> None:
        self._hub = InformerHub(store)
        self._layout = layout
        self._pods = pods
        self._services: dict[Key, Backends] = {}
        self._lines: dict[str, str] = {}
        """By namespace; emptied when a service changes."""
        self._filled: dict[str, str] = {}
        """By uid: the lines that its file has."""
        self._changed = asyncio.Event()
        self._informers: tuple[Informer, Informer] | None = None

    def fill(self, uid: str, namespace: str) -> None:
        """The names that are known by now, into the file of one pod. Quick; what changes later is written later."""
        lines = self._lines_for(namespace)
        if self._filled.get(uid) != lines and rewrite(self._layout.etc(uid) / "hosts", lines):
            self._filled[uid] = lines

    async def run(self) -> None:
        """Until cancelled."""
        try:
            services, endpoints = self._informers = await self._follow()
            for informer in (services, endpoints):
                await informer.wait_synced()
            for informer in (services, endpoints):
                informer.add_handler(self._note)
            while True:
                await self._refresh()
                try:
                    async with asyncio.timeout(_LOOK_S):
                        await self._changed.wait()
                    await asyncio.sleep(_DEBOUNCE_S)
                except TimeoutError:
                    continue
        finally:
            await self._hub.stop()

    async def _follow(self) -> tuple[Informer, Informer]:
        attempt = 0
        while True:
            try:
                services = await self._hub.informer("", "Service", view=ServiceView, keep="nothing")
                endpoints = await self._hub.informer("", "Endpoints", view=EndpointsView, keep="nothing")
                self._hub.start()
                return services, endpoints
            except ApiError as error:
                log.warning("the services of the cluster can't be listed yet: %s", error)
                await asyncio.sleep(_RETRY.delay_s(attempt, "names"))
                attempt += 1

    def _note(self, change: Change) -> None:
        assert self._informers is not None
        services, endpoints = (informer.cache for informer in self._informers)
        cached = change.newest.key
        key = (cached.namespace, cached.name)
        service, behind = services.get(cached), endpoints.get(cached)
        found = None
        if service is not None:
            found = backends(service.view(ServiceView), behind.view(EndpointsView) if behind is not None else None)
        if found == self._services.get(key):
            return
        if found is None:
            del self._services[key]
        else:
            self._services[key] = found
        self._lines.clear()
        self._changed.set()

    def _lines_for(self, namespace: str) -> str:
        lines = self._lines.get(namespace)
        if lines is None:
            lines = self._lines[namespace] = service_lines(namespace, self._services)
        return lines

    async def _refresh(self) -> None:
        self._changed.clear()
        pods = dict(self._pods())
        self._filled = {uid: lines for uid, lines in self._filled.items() if uid in pods}
        stale = {uid: lines for uid, name in pods.items() if self._filled.get(uid) != (lines := self._lines_for(name))}
        if stale:
            self._filled.update(await asyncio.to_thread(self._write, stale))

    def _write(self, stale: Mapping[str, str]) -> dict[str, str]:
        """In a thread. Those that were written; a file that is not there yet is tried again."""
        done: dict[str, str] = {}
        for uid, lines in stale.items():
            try:
                if rewrite(self._layout.etc(uid) / "hosts", lines):
                    done[uid] = lines
            except (OSError, ValueError) as error:
                log.warning("the hosts file of pod %s can't be written: %s", uid, error)
        return done
