"""Volumes of a pod as scheduling sees them: which claims it uses, how those are bound, which disks it mounts itself.

Pure functions over facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from muster.engine.blocks import PodBlock
from muster.engine.facts import ClaimFacts, PersistentVolumeFacts, PodFacts, PodSpecFacts, StorageClassFacts, VolumeFacts

Key = tuple[str, str]
"""Namespace and name."""

SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
"""On a claim: the node for which a volume is to be made. Provisioners wait for it where the class waits for a consumer."""
CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
WAIT_FOR_CONSUMER: Final = "WaitForFirstConsumer"
ONE_POD: Final = "ReadWriteOncePod"
_EBS: Final = "EBS volume"
_RBD: Final = "RBD image"


class ClaimUse(msgspec.Struct, frozen=True):
    """A claim that a pod uses. `is_own`: made for this very pod and named after it."""

    key: Key
    is_own: bool = False


class Disk(msgspec.Struct, frozen=True):
    """A disk that the pod mounts by its own name, without a claim. `identity` tells disks apart."""

    identity: tuple[str, ...]
    is_read_only: bool
    monitors: frozenset[str] = frozenset()
    """Of a Ceph cluster; sets that share none belong to different clusters."""

    def clashes(self, other: Disk) -> bool:
        """Whether both can't be on one node at once. An EBS volume can't be shared, the others can be while all only read."""
        if self.identity != other.identity or (self.identity[0] == _RBD and not self.monitors & other.monitors):
            return False
        return self.identity[0] == _EBS or not (self.is_read_only and other.is_read_only)

    def __str__(self) -> str:
        return " ".join(self.identity)


def the_pod(pods: PodBlock) -> PodFacts:
    """The pod that is asked about; claims belong to pods, not to shapes."""
    if pods.pod is None:
        raise LookupError("a question about volumes needs the pod itself: set PodBlock.pod")
    return pods.pod


def uses_claims(spec: PodSpecFacts) -> bool:
    return any(volume.persistent_volume_claim is not None or volume.ephemeral is not None for volume in spec.volumes)


def claims_of(pod: PodFacts) -> list[ClaimUse]:
    """The claims that the pod uses, each once."""
    namespace = pod.metadata.namespace
    found: dict[Key, ClaimUse] = {}
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            key = (namespace, volume.persistent_volume_claim.claim_name)
            found.setdefault(key, ClaimUse(key))
        elif volume.ephemeral is not None:
            key = (namespace, f"{pod.metadata.name}-{volume.name}")
            found.setdefault(key, ClaimUse(key, is_own=True))
    return list(found.values())


def class_of(claim: ClaimFacts) -> str:
    """The name of its storage class; empty for none."""
    return claim.metadata.annotations.get(CLASS_ANNOTATION) or claim.spec.storage_class_name or ""


def waits_for_consumer(claim: ClaimFacts, classes: Mapping[str, StorageClassFacts]) -> bool:
    """Whether a volume is made, or chosen, for the claim only when it is known where its pod goes."""
    found = classes.get(class_of(claim))
    return found is not None and found.volume_binding_mode == WAIT_FOR_CONSUMER


def claims_to_provision(pod: PodFacts, claims: Mapping[Key, ClaimFacts], classes: Mapping[str, StorageClassFacts]) -> list[Key]:
    """Claims for which, when the pod is bound, SELECTED_NODE must be written with the node's name, so that a volume is made."""
    found: list[Key] = []
    for use in claims_of(pod):
        claim = claims.get(use.key)
        if claim is None or claim.spec.volume_name or SELECTED_NODE in claim.metadata.annotations:
            continue
        if waits_for_consumer(claim, classes) and classes[class_of(claim)].provisioner != NO_PROVISIONER:
            found.append(use.key)
    return found


def bound_volumes(
    pod: PodFacts, claims: Mapping[Key, ClaimFacts], volumes: Mapping[str, PersistentVolumeFacts]
) -> Iterator[PersistentVolumeFacts]:
    """The volumes that the pod's claims are bound to, as far as they are known."""
    for use in claims_of(pod):
        claim = claims.get(use.key)
        volume = volumes.get(claim.spec.volume_name) if claim is not None and claim.spec.volume_name else None
        if volume is not None:
            yield volume


def mounts_disks(spec: PodSpecFacts) -> bool:
    return any(v.gce_persistent_disk or v.aws_elastic_block_store or v.rbd or v.iscsi for v in spec.volumes)


def disks_of(spec: PodSpecFacts) -> list[Disk]:
    """The disks that the pod mounts by name."""
    return [disk for volume in spec.volumes for disk in _disks(volume)]


def _disks(volume: VolumeFacts) -> Iterator[Disk]:
    if source := volume.gce_persistent_disk:
        yield Disk(("GCE disk", _text(source, "pdName")), _is_read_only(source))
    if source := volume.aws_elastic_block_store:
        yield Disk((_EBS, _text(source, "volumeID")), _is_read_only(source))
    if source := volume.iscsi:
        yield Disk(("iSCSI target", _text(source, "iqn")), _is_read_only(source))
    if source := volume.rbd:
        monitors = source.get("monitors")
        yield Disk(
            (_RBD, _text(source, "pool") or "rbd", _text(source, "image")),
            _is_read_only(source),
            frozenset(map(str, monitors)) if isinstance(monitors, list) else frozenset(),
        )


def _text(source: Mapping[str, Any], field: str) -> str:
    value = source.get(field, "")
    return value if isinstance(value, str) else str(value)


def _is_read_only(source: Mapping[str, Any]) -> bool:
    return source.get("readOnly") is True
