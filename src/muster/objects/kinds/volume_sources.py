"""Sources of storage that pods and PersistentVolumes describe alike, whole or but for the Secret they name. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

from muster.objects.kinds.base import Native, Strings, Texts, between, default, one_of


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


# The bases below have what a pod and a PersistentVolume say alike; the two differ in how they name a Secret: a pod's is in its
# own namespace, a PersistentVolume has none and names one.


class AzureFileSource(Native):
    secret_name: Annotated[str, "Secret with the account and its key."]
    share_name: Annotated[str, "The share."]
    read_only: Annotated[bool, "Mount it read-only."] = False


class CephFSSource(Native):
    monitors: Annotated[Strings, "Addresses of its monitors."]
    path: Annotated[str, "Directory to mount as the root."] = ""
    user: Annotated[str, "Ceph user."] = ""
    secret_file: Annotated[str, "Key ring on the node."] = ""
    read_only: Annotated[bool, "Mount it read-only."] = False


class CinderSource(Native):
    volume_id: Annotated[str, "Its id in Cinder."]
    fs_type: Annotated[str, "Its file system."] = ""
    read_only: Annotated[bool, "Mount it read-only."] = False


class FlexSource(Native):
    driver: Annotated[str, "The driver."]
    fs_type: Annotated[str, "Its file system."] = ""
    read_only: Annotated[bool, "Mount it read-only."] = False
    options: Annotated[Texts, "Settings for the driver."] = {}


class GlusterfsSource(Native):
    endpoints: Annotated[str, "Endpoints object that lists the servers."]
    path: Annotated[str, "The volume's name."]
    read_only: Annotated[bool, "Mount it read-only."] = False


class ISCSISource(Native):
    target_portal: Annotated[str, "Address of the target."]
    iqn: Annotated[str, "Name of the target."]
    lun: Annotated[int, between(), "Number of the unit."]
    iscsi_interface: Annotated[str, "Interface to use."] = "default"
    fs_type: Annotated[str, "Its file system."] = ""
    read_only: Annotated[bool, "Mount it read-only."] = False
    portals: Annotated[Strings, "Further addresses of the target."] = []
    chap_auth_discovery: Annotated[bool, "Authenticate discovery with CHAP."] = False
    chap_auth_session: Annotated[bool, "Authenticate the session with CHAP."] = False
    initiator_name: Annotated[str | None, "Name of this side."] = None


class RBDSource(Native):
    monitors: Annotated[Strings, "Addresses of the monitors."]
    image: Annotated[str, "The image."]
    fs_type: Annotated[str, "Its file system."] = ""
    pool: Annotated[str, "Its pool."] = "rbd"
    user: Annotated[str, "Ceph user."] = "admin"
    keyring: Annotated[str, "Key ring on the node."] = "/etc/ceph/keyring"
    read_only: Annotated[bool, "Mount it read-only."] = False


class ScaleIOSource(Native):
    gateway: Annotated[str, "Address of the API gateway."]
    system: Annotated[str, "The storage system."]
    ssl_enabled: Annotated[bool, "Speak TLS to the gateway."] = False
    protection_domain: Annotated[str, "Protection domain."] = ""
    storage_pool: Annotated[str, "Pool in the domain."] = ""
    storage_mode: Annotated[str, one_of("ThickProvisioned", "ThinProvisioned"), "How space is taken."] = "ThinProvisioned"
    volume_name: Annotated[str, "An existing volume."] = ""
    fs_type: Annotated[str, "Its file system."] = "xfs"
    read_only: Annotated[bool, "Mount it read-only."] = False


class StorageOSSource(Native):
    volume_name: Annotated[str, "The volume."] = ""
    fs_type: Annotated[str, "Its file system."] = ""
    read_only: Annotated[bool, "Mount it read-only."] = False
