"""Sources of storage that pods and PersistentVolumes describe alike. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

from muster.objects.kinds.base import Native, Strings, between, default, one_of


class HostPathVolumeSource(Native):
    """A file or directory of the node. Whoever may use this can read the node."""

    path: Annotated[str, "The path on the node."]
    type: Annotated[
        str | None,
        one_of("", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"),
        default(""),
        "What must be there before the mount; empty checks nothing.",
    ] = None


class NFSVolumeSource(Native):
    """A directory of an NFS server."""

    server: Annotated[str, "The server."]
    path: Annotated[str, "The exported path."]
    read_only: Annotated[bool, "Mount it read-only."] = False


class FCVolumeSource(Native):
    """A Fibre Channel disk."""

    target_wwns: Annotated[Strings, "World wide names of the target."] = []
    lun: Annotated[int | None, between(), "Number of the unit."] = None
    fs_type: Annotated[str, "Its file system."] = ""
    read_only: Annotated[bool, "Mount it read-only."] = False
    wwids: Annotated[Strings, "World wide identifiers, instead of targets and unit."] = []


class GCEPersistentDiskVolumeSource(Native):
    """A Google Cloud disk."""

    pd_name: Annotated[str, "The disk's name."]
    fs_type: Annotated[str, "Its file system."] = ""
    partition: Annotated[int, between(), "Partition to mount; 0 for the whole disk."] = 0
    read_only: Annotated[bool, "Mount it read-only."] = False


class AWSElasticBlockStoreVolumeSource(Native):
    """An AWS disk."""

    volume_id: Annotated[str, "The disk's id."]
    fs_type: Annotated[str, "Its file system."] = ""
    partition: Annotated[int, between(), "Partition to mount; 0 for the whole disk."] = 0
    read_only: Annotated[bool, "Mount it read-only."] = False


class AzureDiskVolumeSource(Native):
    """An Azure disk."""

    disk_name: Annotated[str, "The disk's name."]
    disk_uri: Annotated[str, "Where it is stored."]
    caching_mode: Annotated[str | None, one_of("None", "ReadOnly", "ReadWrite"), "How the host caches it."] = "ReadWrite"
    fs_type: Annotated[str | None, "Its file system."] = "ext4"
    read_only: Annotated[bool | None, default(False), "Mount it read-only."] = None
    kind: Annotated[str | None, one_of("Shared", "Dedicated", "Managed"), "Kind of account that holds it."] = "Shared"


class VsphereVirtualDiskVolumeSource(Native):
    """A vSphere disk."""

    volume_path: Annotated[str, "Path of the disk's file."]
    fs_type: Annotated[str, "Its file system."] = ""
    storage_policy_name: Annotated[str, "Name of its storage policy."] = ""
    storage_policy_id: Annotated[str, "Id of its storage policy."] = ""


class PhotonPersistentDiskVolumeSource(Native):
    """A Photon Controller disk."""

    pd_id: Annotated[str, "The disk's id."]
    fs_type: Annotated[str, "Its file system."] = ""


class PortworxVolumeSource(Native):
    """A Portworx volume."""

    volume_id: Annotated[str, "The volume's id."]
    fs_type: Annotated[str, "Its file system."] = ""
    read_only: Annotated[bool, "Mount it read-only."] = False


class QuobyteVolumeSource(Native):
    """A Quobyte volume."""

    registry: Annotated[str, "Addresses of the registry, comma separated."]
    volume: Annotated[str, "The volume's name."]
    read_only: Annotated[bool, "Mount it read-only."] = False
    user: Annotated[str, "User to map to."] = ""
    group: Annotated[str, "Group to map to."] = ""
    tenant: Annotated[str, "Tenant that owns it."] = ""


class FlockerVolumeSource(Native):
    """A Flocker dataset."""

    dataset_name: Annotated[str, "Its name."] = ""
    dataset_uuid: Annotated[str, "Its UUID."] = ""
