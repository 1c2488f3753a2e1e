"""What the controllers of jobs, tasks and services need to know of a party: whether it is there, and whose it is. Pure.

One view of Domains and one of namespaces for all of them, because informers that keep views only are shared by view.
"""

from __future__ import annotations

from typing import Final

import msgspec

from muster.objects.view import View
from muster.store.cache import Cache, Cached, ObjectKey
from muster.store.informer import Change

PARTNER: Final = "partner"


class DomainSpecView(View):
    role: str = ""
    master: str = ""


class DomainView(View):
    spec: DomainSpecView = msgspec.field(default_factory=DomainSpecView)

    @property
    def is_partner(self) -> bool:
        """It has a control plane of its own."""
        return self.spec.role == PARTNER


class Bare(View):
    """For kinds of which only the metadata counts."""


class Party(msgspec.Struct, frozen=True):
    """Of a party's Domain and namespace, what a task or a service needs to know."""

    is_partner: bool = False
    has_namespace: bool = True


def comes_or_goes(change: Change) -> bool:
    """Whether a Domain or namespace is there, or means another thing, than before: their status changes all the time."""
    old, new = change.old, change.new
    if old is None or new is None or old.deleting != new.deleting:
        return True
    return old.kind == "Domain" and old.view(DomainView) != new.view(DomainView)


def is_party(domain: Cached) -> bool:
    """Whether it still takes part in the work that is there. An own Domain that is being deleted does: it waits for that work,
    and must not be waited for. A partner's does not: deleting it is how its work is given up here."""
    return not (domain.deleting and domain.view(DomainView).is_partner)


def party_of(domain: Cached | None, namespaces: Cache) -> Party | None:
    """None when there is no such Domain."""
    if domain is None:
        return None
    namespace = namespaces.get(ObjectKey("", domain.key.name))
    return Party(
        is_partner=domain.view(DomainView).is_partner,
        has_namespace=namespace is not None and not namespace.deleting,
    )
