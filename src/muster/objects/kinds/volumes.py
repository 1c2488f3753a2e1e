"""Where a pod's volumes come from: files of the API, directories of the node, claims, and storage systems. Pure."""

# ruff: noqa: RUF012 - msgspec gives each object an empty container of its own
from __future__ import annotations

from typing import Annotated

from muster.objects.kinds.base import Mode, Native, PullPolicy, Selector, Texts, between
from muster.objects.kinds.claims import PersistentVolumeClaimTemplate
from muster.objects.kinds.containers import ObjectFieldSelector, ResourceFieldSelector
from muster.objects.kinds.references import LocalObjectReference
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
from muster.objects.view import ATOMIC, QuantityValue

Owner = Annotated[int | None, between(0, None, "int64")]


class KeyToPath(Native):
    """Puts one key into a file of its own name."""

    key: Annotated[str, "The key."]
    path: Annotated[str, "The file, relative to the volume."]
    mode: Annotated[Mode | None, "Permission bits of the file."] = None
    user: Annotated[Owner, "User id that owns the file."] = None


class ConfigMapVolumeSource(Native):
    """Files from a ConfigMap."""

    name: Annotated[str, "The ConfigMap's name."] = ""
    items: Annotated[list[KeyToPath], ATOMIC, "The keys to use; all of them when empty."] = []
    default_mode: Annotated[Mode, "Permission bits of the files."] = 0o644
    default_user: Annotated[Owner, "User id that owns the files."] = None
    optional: Annotated[bool | None, "Go on when the ConfigMap or a key is missing."] = None


class SecretVolumeSource(Native):
    """Files from a Secret."""

    secret_name: Annotated[str, "The Secret's name."] = ""
    items: Annotated[list[KeyToPath], ATOMIC, "The keys to use; all of them when empty."] = []
    default_mode: Annotated[Mode, "Permission bits of the files."] = 0o644
    default_user: Annotated[Owner, "User id that owns the files."] = None
    optional: Annotated[bool | None, "Go on when the Secret or a key is missing."] = None


class DownwardAPIVolumeFile(Native):
    """A field of the pod as a file."""

    path: Annotated[str, "The file, relative to the volume."]
    field_ref: Annotated[ObjectFieldSelector | None, "A field of the pod."] = None
    resource_field_ref: Annotated[ResourceFieldSelector | None, "A request or limit of a container."] = None
    mode: Annotated[Mode | None, "Permission bits of the file."] = None
    user: Annotated[Owner, "User id that owns the file."] = None


class DownwardAPIVolumeSource(Native):
    """Files with the pod's own fields."""

    items: Annotated[list[DownwardAPIVolumeFile], ATOMIC, "The files."] = []
    default_mode: Annotated[Mode, "Permission bits of the files."] = 0o644
    default_user: Annotated[Owner, "User id that owns the files."] = None


class EmptyDirVolumeSource(Native):
    """An empty directory that lives as long as the pod is on its node."""

    medium: Annotated[str, "Empty for the node's disk, `Memory` for a tmpfs, `HugePages` for huge pages."] = ""
    size_limit: Annotated[QuantityValue | None, "The most that it may hold; the pod is evicted beyond it."] = None
    mode: Annotated[Mode | None, "Permission bits of the directory."] = None


class PersistentVolumeClaimVolumeSource(Native):
    """The volume behind a claim."""

    claim_name: Annotated[str, "The claim's name in the pod's namespace."]
    read_only: Annotated[bool, "Mount it read-only everywhere."] = False


class EphemeralVolumeSource(Native):
    """A claim that is made for the pod and goes with it."""

    volume_claim_template: Annotated[PersistentVolumeClaimTemplate | None, "The claim to make."] = None


class SecretProjection(Native):
    """Files from a Secret in a projected volume."""

    name: Annotated[str, "The Secret's name."] = ""
    items: Annotated[list[KeyToPath], ATOMIC, "The keys to use; all of them when empty."] = []
    optional: Annotated[bool | None, "Go on when the Secret or a key is missing."] = None


class ConfigMapProjection(Native):
    """Files from a ConfigMap in a projected volume."""

    name: Annotated[str, "The ConfigMap's name."] = ""
    items: Annotated[list[KeyToPath], ATOMIC, "The keys to use; all of them when empty."] = []
    optional: Annotated[bool | None, "Go on when the ConfigMap or a key is missing."] = None


class DownwardAPIProjection(Native):
    """The pod's own fields in a projected volume."""

    items: Annotated[list[DownwardAPIVolumeFile], ATOMIC, "The files."] = []


class ServiceAccountTokenProjection(Native):
    """A token of the pod's service account, renewed before it expires."""

    path: Annotated[str, "The file, relative to the volume."]
    audience: Annotated[str, "Who the token is for; the API server when empty."] = ""
    expiration_seconds: Annotated[int | None, between(600, None, "int64"), "Life of a token."] = 3600
    user: Annotated[Owner, "User id that owns the file."] = None


class ClusterTrustBundleProjection(Native):
    """Trust anchors from ClusterTrustBundle objects."""

    path: Annotated[str, "The file, relative to the volume."]
    name: Annotated[str | None, "One bundle by name."] = None
    signer_name: Annotated[str | None, "All bundles of a signer, with `labelSelector`."] = None
    label_selector: Annotated[Selector | None, "Which of the signer's bundles."] = None
    optional: Annotated[bool | None, "Go on when there is none."] = None
    user: Annotated[Owner, "User id that owns the file."] = None


class PodCertificateProjection(Native):
    """A key and a certificate for the pod, renewed before it expires."""

    signer_name: Annotated[str, "Who signs it."]
    key_type: Annotated[str, "Kind of key to make, such as ECDSAP256 or ED25519."]
    max_expiration_seconds: Annotated[int | None, between(), "Longest life of a certificate."] = None
    credential_bundle_path: Annotated[str, "File with key and certificates together."] = ""
    key_path: Annotated[str, "File with the key alone."] = ""
    certificate_chain_path: Annotated[str, "File with the certificates alone."] = ""
    user_annotations: Annotated[Texts, "Passed on to the signer."] = {}
    user: Annotated[Owner, "User id that owns the files."] = None


class VolumeProjection(Native):
    """One source of a projected volume; exactly one is set."""

    secret: Annotated[SecretProjection | None, "Files from a Secret."] = None
    config_map: Annotated[ConfigMapProjection | None, "Files from a ConfigMap."] = None
    downward_api: Annotated[DownwardAPIProjection | None, "The pod's own fields."] = None
    service_account_token: Annotated[ServiceAccountTokenProjection | None, "A token of the service account."] = None
    cluster_trust_bundle: Annotated[ClusterTrustBundleProjection | None, "Trust anchors."] = None
    pod_certificate: Annotated[PodCertificateProjection | None, "A key and a certificate for the pod."] = None


class ProjectedVolumeSource(Native):
    """Several sources in one directory."""

    sources: Annotated[list[VolumeProjection], ATOMIC, "The sources."] = []
    default_mode: Annotated[Mode, "Permission bits of the files."] = 0o644
    default_user: Annotated[Owner, "User id that owns the files."] = None


class CSIVolumeSource(Native):
    """A volume that a CSI driver makes for the pod."""

    driver: Annotated[str, "The driver's name."]
    read_only: Annotated[bool | None, "Mount it read-only."] = None
    fs_type: Annotated[str | None, "File system to make; the driver's choice when absent."] = None
    volume_attributes: Annotated[Texts, "Settings for the driver."] = {}
    node_publish_secret_ref: Annotated[LocalObjectReference | None, "Secret for the driver."] = None


class ImageVolumeSource(Native):
    """The files of an OCI image or artifact, read-only."""

    reference: Annotated[str, "The image."] = ""
    pull_policy: Annotated[PullPolicy, "When to fetch it; like a container's when absent."] = ""


class GitRepoVolumeSource(Native):
    """A git repository, cloned before the start. Switched off in current clusters: use an init container."""

    repository: Annotated[str, "Its URL."]
    revision: Annotated[str, "Commit to check out."] = ""
    directory: Annotated[str, "Directory in the volume."] = ""


class AzureFileVolumeSource(AzureFileSource):
    """An Azure file share."""


class CephFSVolumeSource(CephFSSource):
    """A Ceph file system."""

    secret_ref: Annotated[LocalObjectReference | None, "Secret with the key, instead of the file."] = None


class CinderVolumeSource(CinderSource):
    """An OpenStack block volume."""

    secret_ref: Annotated[LocalObjectReference | None, "Secret with the parameters to connect."] = None


class FlexVolumeSource(FlexSource):
    """A volume of a FlexVolume driver."""

    secret_ref: Annotated[LocalObjectReference | None, "Secret for the driver."] = None


class GlusterfsVolumeSource(GlusterfsSource):
    """A Gluster volume."""


class ISCSIVolumeSource(ISCSISource):
    """An iSCSI disk."""

    secret_ref: Annotated[LocalObjectReference | None, "Secret for CHAP."] = None


class RBDVolumeSource(RBDSource):
    """A Ceph block device."""

    secret_ref: Annotated[LocalObjectReference | None, "Secret with the key, instead of the key ring."] = None


class ScaleIOVolumeSource(ScaleIOSource, kw_only=True):
    """A ScaleIO volume."""

    secret_ref: Annotated[LocalObjectReference, "Secret with user and password."]


class StorageOSVolumeSource(StorageOSSource):
    """A StorageOS volume."""

    volume_namespace: Annotated[str, "Its namespace there; the pod's when empty."] = ""
    secret_ref: Annotated[LocalObjectReference | None, "Secret with the credentials."] = None


class Volume(Native):
    """A directory or device that containers of the pod can mount. Besides the name, exactly one source is set."""

    name: Annotated[str, "Unique in the pod; a DNS label."]
    host_path: Annotated[HostPathVolumeSource | None, "A path of the node."] = None
    empty_dir: Annotated[EmptyDirVolumeSource | None, "An empty directory for the pod's life."] = None
    config_map: Annotated[ConfigMapVolumeSource | None, "Files from a ConfigMap."] = None
    secret: Annotated[SecretVolumeSource | None, "Files from a Secret."] = None
    downward_api: Annotated[DownwardAPIVolumeSource | None, "Files with the pod's own fields."] = None
    projected: Annotated[ProjectedVolumeSource | None, "Several of these in one directory."] = None
    persistent_volume_claim: Annotated[PersistentVolumeClaimVolumeSource | None, "The volume behind a claim."] = None
    ephemeral: Annotated[EphemeralVolumeSource | None, "A claim made for this pod."] = None
    csi: Annotated[CSIVolumeSource | None, "A CSI driver's volume."] = None
    image: Annotated[ImageVolumeSource | None, "The files of an image."] = None
    nfs: Annotated[NFSVolumeSource | None, "A directory of an NFS server."] = None
    iscsi: Annotated[ISCSIVolumeSource | None, "An iSCSI disk."] = None
    fc: Annotated[FCVolumeSource | None, "A Fibre Channel disk."] = None
    git_repo: Annotated[GitRepoVolumeSource | None, "A git repository."] = None
    flex_volume: Annotated[FlexVolumeSource | None, "A FlexVolume driver's volume."] = None
    cephfs: Annotated[CephFSVolumeSource | None, "A Ceph file system."] = None
    rbd: Annotated[RBDVolumeSource | None, "A Ceph block device."] = None
    glusterfs: Annotated[GlusterfsVolumeSource | None, "A Gluster volume."] = None
    cinder: Annotated[CinderVolumeSource | None, "An OpenStack volume."] = None
    gce_persistent_disk: Annotated[GCEPersistentDiskVolumeSource | None, "A Google Cloud disk."] = None
    aws_elastic_block_store: Annotated[AWSElasticBlockStoreVolumeSource | None, "An AWS disk."] = None
    azure_disk: Annotated[AzureDiskVolumeSource | None, "An Azure disk."] = None
    azure_file: Annotated[AzureFileVolumeSource | None, "An Azure file share."] = None
    vsphere_volume: Annotated[VsphereVirtualDiskVolumeSource | None, "A vSphere disk."] = None
    photon_persistent_disk: Annotated[PhotonPersistentDiskVolumeSource | None, "A Photon disk."] = None
    portworx_volume: Annotated[PortworxVolumeSource | None, "A Portworx volume."] = None
    quobyte: Annotated[QuobyteVolumeSource | None, "A Quobyte volume."] = None
    scale_io: Annotated[ScaleIOVolumeSource | None, "A ScaleIO volume."] = None
    storageos: Annotated[StorageOSVolumeSource | None, "A StorageOS volume."] = None
    flocker: Annotated[FlockerVolumeSource | None, "A Flocker dataset."] = None
