"""The store that needs nothing but a directory: SQLite on disk, everything else in memory."""

from muster.store.embedded.admission import Actor, Admission, AdmissionRequest, Admissions
from muster.store.embedded.errors import (
    StoreCorrupt,
    StoreError,
    StoreForeign,
    StoreLocked,
    StoreNotADirectory,
    StoreTooNew,
    StoreUnwritable,
)
from muster.store.embedded.limits import Limits
from muster.store.embedded.record_reads import RecordPage
from muster.store.embedded.records import Event, Record
from muster.store.embedded.store import EmbeddedStore
from muster.store.embedded.watchers import Watcher

__all__ = [
    "Actor",
    "Admission",
    "AdmissionRequest",
    "Admissions",
    "EmbeddedStore",
    "Event",
    "Limits",
    "Record",
    "RecordPage",
    "StoreCorrupt",
    "StoreError",
    "StoreForeign",
    "StoreLocked",
    "StoreNotADirectory",
    "StoreTooNew",
    "StoreUnwritable",
    "Watcher",
]
