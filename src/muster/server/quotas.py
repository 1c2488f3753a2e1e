"""ResourceQuotas of the embedded store: what would be too much is refused, and each quota's status says what is used.

What counts is what is there, writes in flight included. Every namespace that has a quota has a `Book`, kept change by change
as writes are staged, and brought back to what is there when a commit fails. `status.used` is a
report that nothing is decided by: it goes to disk with what is created, and soon after everything else (deletions, pods that
ended, quotas that changed), when one write tells of many changes.

Concurrency: on the event loop. `charge` and `_staged` run in the turn of the loop in which a write is submitted (see
`Accounts`), so two writes can't both take the last place. A crash loses nothing and leaves nothing behind: nothing is kept that
does not follow from the objects. The reports are one task. A write in a namespace without a quota costs one look into a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from muster.objects.quota_book import Book, Entry
from muster.objects.resource_quotas import QUOTAS, Amounts, Quota, counted, counted_json, kind_of
from muster.objects.rules.report import obj
from muster.objects.status import Forbidden, Raw
from muster.server.admission import Hook, refused_object
from muster.server.logs import logger
from muster.server.upkeep import Upkeep
from muster.store.contract import EventType
from muster.store.embedded import EmbeddedStore
from muster.store.embedded.admission import Actor, AdmissionRequest, Charge, Note
from muster.store.embedded.core import Change
from muster.store.embedded.records import Key

log = logger(__name__)


class Quotas(Upkeep):
    """`start` before the server serves, `stop` before the store closes. The reports are its upkeep."""

    what = "reports of quotas"

    def __init__(self, store: EmbeddedStore) -> None:
        super().__init__()
        self._store = store
        self._resource = store.catalog.by_kind("", "ResourceQuota")
        self._books: dict[str, Book | None] = {}
        """By namespace, exactly those that have a quota; None until its objects are counted at the next use."""
        self._unreported: set[str] = set()

    def start(self) -> None:
        """Decide from now on, and bring every report up to date in a task."""
        self._forget()
        self._store.keep_accounts(self)
        self._begin()

    # -- deciding ------------------------------------------------------------------------------------------------------------

    def charge(self, changes: Sequence[Change], actor: Actor | None) -> Charge | None:
        concerned: dict[str, list[Change]] = {}
        for change in changes:
            if change.key[0] in self._books or change.collection.id == QUOTAS:
                concerned.setdefault(change.key[0], []).append(change)
        if not concerned:
            return None
        notes: list[Note] = []
        entries: dict[str, list[Entry]] = {}
        for namespace, some in concerned.items():
            book = self._book(namespace)
            if book is None:
                continue
            entries[namespace] = [_entry(one) for one in some if one.fields is None and book.counts(one.collection.id)]
            verdict = book.judge(entries[namespace])
            if verdict.refusal:
                raise _refused(some, verdict.entry, verdict.refusal)
            if any(one.is_new for one in entries[namespace]):
                hard = {quota.name: quota.hard for quota in book.quotas}
                notes += [
                    (self._resource, (namespace, name), _reporting(hard[name], used)) for name, used in verdict.used.items()
                ]
        told = {namespace for namespace, some in concerned.items() if any(one.collection.id == QUOTAS for one in some)}
        if not told and not any(entries.values()):
            return None
        changed = {namespace for namespace in told if self._is_about_quotas(namespace, concerned[namespace])}
        return Charge(lambda: self._staged(entries, changed, told), notes)

    def _is_about_quotas(self, namespace: str, changes: Sequence[Change]) -> bool:
        """Whether a quota comes, goes, or says another thing. A status that was written is not such a change."""
        book = self._books.get(namespace)
        known = {} if book is None else {quota.name: quota for quota in book.quotas}
        return any(
            change.type is EventType.DELETED or known.get(change.key[1]) != Quota.of(change.raw)
            for change in changes
            if change.collection.id == QUOTAS
        )

    def _staged(self, entries: dict[str, list[Entry]], changed: set[str], told: set[str]) -> None:
        """Count what is in flight now. `changed`, `told`: namespaces whose quotas changed, and in which any was written."""
        try:
            for namespace, some in entries.items():
                book = self._books.get(namespace)
                if book is None:
                    continue
                for one in some:
                    # What is created goes to disk with its report.
                    if book.put(one.kind, one.name, one.after) and not one.is_new:
                        self._report(namespace)
            for namespace in changed:
                self._read_quotas(namespace)
            for namespace in told:
                self._report(namespace)
        except Exception as error:  # the write is on its way, and whoever comes next finds the fault
            log.error("quotas are counted anew", exc_info=error)
            self._forget()

    def dropped(self, changed: Sequence[tuple[str, Key]]) -> None:
        try:
            for namespace in {key[0] for kind, key in changed if kind == QUOTAS}:
                self._read_quotas(namespace)
            for kind, key in changed:
                book = self._books.get(key[0])
                if book is not None and book.counts(kind):
                    record = self._store.latest_record(kind, key)
                    book.put(kind, key[1], None if record is None else counted_json(kind, record.value))
                    self._report(key[0])
        except Exception as error:  # the authors of the writes must hear that they failed
            log.error("quotas are counted anew", exc_info=error)
            self._forget()

    def _forget(self) -> None:
        """Count everything anew when it is next needed."""
        self._books = dict.fromkeys(sorted({record.namespace for record in self._store.latest_records(QUOTAS)}))
        for namespace in self._books:
            self._report(namespace)

    def _book(self, namespace: str) -> Book | None:
        """The namespace's book, counted if need be; None when it has no quota."""
        book = self._books.get(namespace)
        if book is None and namespace in self._books:
            book = self._read_quotas(namespace)
        return book

    def _read_quotas(self, namespace: str) -> Book | None:
        """Begin or go on to count for the quotas that are there now. What was counted before is kept."""
        quotas = [Quota.of(record.raw()) for record in self._store.latest_records(QUOTAS, namespace)]
        if not quotas:
            self._books.pop(namespace, None)
            return None
        book = self._books.get(namespace) or Book()
        for kind in book.set_quotas(quotas):
            found = self._store.latest_records(kind, namespace)
            book.load(kind, {record.name: counted_json(kind, record.value) for record in found})
        self._books[namespace] = book
        return book

    # -- reporting -----------------------------------------------------------------------------------------------------------

    def _report(self, namespace: str) -> None:
        self._unreported.add(namespace)
        self._wake()

    async def _round(self) -> None:
        while self._unreported:
            namespace = self._unreported.pop()
            try:
                book = self._book(namespace)
                for name in [quota.name for quota in book.quotas] if book is not None else ():
                    await self._store.amend(self._resource, name, namespace, self._report_of(namespace, name))
            except BaseException:
                self._unreported.add(namespace)
                raise

    def _report_of(self, namespace: str, name: str) -> Callable[[Raw], Raw | None]:
        def change(raw: Raw) -> Raw | None:
            book = self._book(namespace)
            quota = next((one for one in book.quotas if one.name == name), None) if book is not None else None
            if book is None or quota is None:
                return None
            return _reporting(quota.hard, book.used[name])(raw)

        return change


class QuotaNotes(Hook):
    """Whoever bounds something that nothing counts for is told so: Kubernetes takes it without a word, and protects nobody."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store

    async def validate(self, request: AdmissionRequest) -> None:
        if request.resource.qualified != QUOTAS or request.object is None or request.subresource:
            return
        names = [(name, kind_of(name)) for name in obj(obj(request.object, "spec"), "hard")]
        served = {resource.qualified for resource in self._store.catalog.all}
        for name, kind in names:
            if not kind:
                instead = "" if name.startswith(("count/", "requests.")) else f"; of other resources it is requests.{name}"
                request.warn(f"spec.hard[{name}] bounds nothing: no object counts for it{instead}")
            elif kind not in served:
                request.warn(
                    f"spec.hard[{name}] bounds nothing: no kind {kind} is served; name it as in count/deployments.apps"
                )


def _entry(change: Change) -> Entry:
    kind, is_gone = change.collection.id, change.type is EventType.DELETED
    after = None if is_gone else counted(kind, change.raw)
    return Entry(kind, change.key[1], after, is_new=change.type is EventType.ADDED)


def _reporting(hard: Amounts, used: Amounts) -> Callable[[Raw], Raw | None]:
    """How a quota is changed to say so."""
    status = {
        "hard": {name: str(amount) for name, amount in hard.items()},
        "used": {name: str(used[name]) for name in hard},
    }

    def change(raw: Raw) -> Raw | None:
        return None if obj(raw, "status") == status else {**raw, "metadata": dict(raw["metadata"]), "status": status}

    return change


def _refused(changes: Sequence[Change], entry: Entry | None, why: str) -> Forbidden:
    about = next(
        change for change in changes if entry is None or (change.collection.id, change.key[1]) == (entry.kind, entry.name)
    )
    return refused_object(about.resource, about.key[1], why)
