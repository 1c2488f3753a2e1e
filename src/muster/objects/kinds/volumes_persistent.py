"""PersistentVolumes: storage that outlives pods. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

from muster.objects.kinds.affinity import NodeSelector
from muster.objects.kinds.base import GRANULAR, Native, NativeObject, Strings, Texts, one_of
from muster.objects.kinds.claims import AccessModes
from muster.objects.kinds.references import ObjectReference, SecretReference
from muster.objects.kinds.volume_sources import (
    AWSElasticBlockStoreVolumeSource,
    AzureDiskVolumeSource,
    AzureFileSource,
    CephFSSource,
    CinderSource,
    FCVolumeSource,
    FlexSource,
    FlockerVolumeSource,
    GCEPersistentDiskVolumeSource,
    GlusterfsSource,
    HostPathVolumeSource,
    ISCSISource,
    NFSVolumeSource,
    PhotonPersistentDiskVolumeSource,
    PortworxVolumeSource,
    QuobyteVolumeSource,
    RBDSource,
    ScaleIOSource,
    StorageOSSource,
    VsphereVirtualDiskVolumeSource,
)
from muster.objects.time import Timestamp
from muster.objects.view import Quantities


class AzureFilePersistentVolumeSource(AzureFileSource):
    """An Azure file share."""

    secret_namespace: Annotated[str | None, "The Secret's namespace; the claim's when absent."] = None


class CephFSPersistentVolumeSource(CephFSSource):
    """A Ceph file system."""

    secret_ref: Annotated[SecretReference | None, "Secret with the key, instead of the file."] = None


class CinderPersistentVolumeSource(CinderSource):
    """An OpenStack block volume."""

    secret_ref: Annotated[SecretReference | None, "Secret with the parameters to connect."] = None


class CSIPersistentVolumeSource(Native):
    """A volume of a CSI driver."""

    driver: Annotated[str, "The driver's name."]
    volume_handle: Annotated[str, "The volume's name at the driver."]
    read_only: Annotated[bool, "Mount it read-only."] = False
    fs_type: Annotated[str, "Its file system."] = ""
    volume_attributes: Annotated[Texts, "Attributes of the volume."] = {}
    controller_publish_secret_ref: Annotated[SecretReference | None, "Secret for attaching."] = None
    node_stage_secret_ref: Annotated[SecretReference | None, "Secret for preparing it on the node."] = None
    node_publish_secret_ref: Annotated[SecretReference | None, "Secret for mounting."] = None
    controller_expand_secret_ref: Annotated[SecretReference | None, "Secret for growing."] = None
    node_expand_secret_ref: Annotated[SecretReference | None, "Secret for growing on the node."] = None


class FlexPersistentVolumeSource(FlexSource):
    """A volume of a FlexVolume driver."""

    secret_ref: Annotated[SecretReference | None, "Secret for the driver."] = None


class GlusterfsPersistentVolumeSource(GlusterfsSource):
    """A Gluster volume."""

    endpoints_namespace: Annotated[str | None, "Namespace of the endpoints; the claim's when absent."] = None


class ISCSIPersistentVolumeSource(ISCSISource):
    """An iSCSI disk."""

    secret_ref: Annotated[SecretReference | None, "Secret for CHAP."] = None


class LocalVolumeSource(Native):
    """A disk or directory of one node."""

    path: Annotated[str, "Its path on the node."]
    fs_type: Annotated[str | None, "Its file system, for a device."] = None


class RBDPersistentVolumeSource(RBDSource):
    """A Ceph block device."""

    secret_ref: Annotated[SecretReference | None, "Secret with the key, instead of the key ring."] = None


class ScaleIOPersistentVolumeSource(ScaleIOSource, kw_only=True):
    """A ScaleIO volume."""

    secret_ref: Annotated[SecretReference, "Secret with user and password."]


class StorageOSPersistentVolumeSource(StorageOSSource):
    """A StorageOS volume."""

    volume_namespace: Annotated[str, "Its namespace there; the claim's when empty."] = ""
    secret_ref: Annotated[ObjectReference | None, "Secret with the credentials."] = None


class VolumeNodeAffinity(Native):
    """Nodes from which the volume can be reached."""

    required: Annotated[NodeSelector | None, "Which nodes."] = None


class PersistentVolumeSpec(Native):
    """What the storage is. Exactly one source is set."""

    capacity: Annotated[Quantities, "How large it is: `storage`."] = {}
    access_modes: Annotated[AccessModes, "How it can be mounted."] = []
    claim_ref: Annotated[
        ObjectReference | None,
        GRANULAR,
        "The claim it is bound to.",
    ] = None
    persistent_volume_reclaim_policy: Annotated[
        str, one_of("Retain", "Recycle", "Delete"), "What becomes of it when its claim goes."
    ] = "Retain"
    storage_class_name: Annotated[str, "Its class."] = ""
    mount_options: Annotated[Strings, "Options for mounting."] = []
    volume_mode: Annotated[str | None, one_of("Filesystem", "Block"), "File system or bare device."] = "Filesystem"
    node_affinity: Annotated[VolumeNodeAffinity | None, "Nodes from which it can be reached."] = None
    volume_attributes_class_name: Annotated[str | None, "Class of changeable attributes."] = None
    host_path: Annotated[HostPathVolumeSource | None, "A path of the node; for one node only."] = None
    local: Annotated[LocalVolumeSource | None, "A disk or directory of one node."] = None
    nfs: Annotated[NFSVolumeSource | None, "A directory of an NFS server."] = None
    csi: Annotated[CSIPersistentVolumeSource | None, "A CSI driver's volume."] = None
    iscsi: Annotated[ISCSIPersistentVolumeSource | None, "An iSCSI disk."] = None
    fc: Annotated[FCVolumeSource | None, "A Fibre Channel disk."] = None
    flex_volume: Annotated[FlexPersistentVolumeSource | None, "A FlexVolume driver's volume."] = None
    cephfs: Annotated[CephFSPersistentVolumeSource | None, "A Ceph file system."] = None
    rbd: Annotated[RBDPersistentVolumeSource | None, "A Ceph block device."] = None
    glusterfs: Annotated[GlusterfsPersistentVolumeSource | None, "A Gluster volume."] = None
    cinder: Annotated[CinderPersistentVolumeSource | None, "An OpenStack volume."] = None
    gce_persistent_disk: Annotated[GCEPersistentDiskVolumeSource | None, "A Google Cloud disk."] = None
    aws_elastic_block_store: Annotated[AWSElasticBlockStoreVolumeSource | None, "An AWS disk."] = None
    azure_disk: Annotated[AzureDiskVolumeSource | None, "An Azure disk."] = None
    azure_file: Annotated[AzureFilePersistentVolumeSource | None, "An Azure file share."] = None
    vsphere_volume: Annotated[VsphereVirtualDiskVolumeSource | None, "A vSphere disk."] = None
    photon_persistent_disk: Annotated[PhotonPersistentDiskVolumeSource | None, "A Photon disk."] = None
    portworx_volume: Annotated[PortworxVolumeSource | None, "A Portworx volume."] = None
    quobyte: Annotated[QuobyteVolumeSource | None, "A Quobyte volume."] = None
    scale_io: Annotated[ScaleIOPersistentVolumeSource | None, "A ScaleIO volume."] = None
    storageos: Annotated[StorageOSPersistentVolumeSource | None, "A StorageOS volume."] = None
    flocker: Annotated[FlockerVolumeSource | None, "A Flocker dataset."] = None


class PersistentVolumeStatus(Native):
    """How the volume is."""

    phase: Annotated[str, one_of("", "Pending", "Available", "Bound", "Released", "Failed"), "Whether it is free."] = ""
    message: Annotated[str, "Why, for people."] = ""
    reason: Annotated[str, "The same in one word."] = ""
    last_phase_transition_time: Annotated[Timestamp, "When `phase` last changed."] = ""


class PersistentVolume(NativeObject):
    """Storage that outlives pods."""

    spec: Annotated[PersistentVolumeSpec | None, "What it is."] = None
    status: Annotated[PersistentVolumeStatus | None, "How it is."] = None
