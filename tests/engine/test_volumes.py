"""Claims and disks of a pod."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muster.engine.blocks import one_shape
from muster.engine.facts import PodSpecFacts
from muster.engine.state import State
from muster.engine.volumes import ClaimUse, claims_of, claims_to_provision, disks_of, the_pod
from tests.engine.building import pod
from tests.engine.volumes_building import claim, keep, mounting, storage_class, volume


def test_claims_of_a_pod_each_once() -> None:
    volumes: list[dict[str, Any]] = [
        {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "b", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
        {"name": "c", "emptyDir": {}},
    ]
    assert claims_of(pod("p", volumes=volumes)) == [
        ClaimUse(("default", "data")),
        ClaimUse(("default", "p-scratch"), is_own=True),
    ]


def test_claims_to_provision_are_those_that_wait_for_this_pod() -> None:
    state = keep(
        State(),
        storage_class("late", "WaitForFirstConsumer"),
        storage_class("local", "WaitForFirstConsumer", "kubernetes.io/no-provisioner"),
        storage_class("now", "Immediate"),
        claim("open", storage_class="late"),
        claim("bound", storage_class="late", volume="pv"),
        claim("chosen", storage_class="late", annotations={"volume.kubernetes.io/selected-node": "a"}),
        claim("by-hand", storage_class="local"),
        claim("at-once", storage_class="now"),
        claim("classless"),
        claim("old-style", annotations={"volume.beta.kubernetes.io/storage-class": "late"}),
        volume("pv"),
    )
    facts = mounting("p", "open", "bound", "chosen", "by-hand", "at-once", "classless", "old-style", "missing")
    found = claims_to_provision(facts, state.claims, state.storage_classes)
    assert found == [("default", "open"), ("default", "old-style")]


def disk(kind: str, **source: Any) -> Any:
    (found,) = disks_of(msgspec.convert({"volumes": [{"name": "v", kind: source}]}, PodSpecFacts))
    return found


GCE, EBS, RBD, ISCSI = "gcePersistentDisk", "awsElasticBlockStore", "rbd", "iscsi"


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        pytest.param(disk(GCE, pdName="x"), disk(GCE, pdName="x"), True, id="GCE, the same"),
        pytest.param(disk(GCE, pdName="x"), disk(GCE, pdName="y"), False, id="GCE, another"),
        pytest.param(disk(GCE, pdName="x", readOnly=True), disk(GCE, pdName="x"), True, id="GCE, one writes"),
        pytest.param(disk(GCE, pdName="x", readOnly=True), disk(GCE, pdName="x", readOnly=True), False, id="GCE, both read"),
        pytest.param(disk(EBS, volumeID="x", readOnly=True), disk(EBS, volumeID="x", readOnly=True), True, id="EBS, never"),
        pytest.param(disk(EBS, volumeID="x"), disk(GCE, pdName="x"), False, id="other kinds of disk"),
        pytest.param(disk(ISCSI, iqn="x", lun=0), disk(ISCSI, iqn="x", lun=1), True, id="iSCSI, by target"),
        pytest.param(disk(ISCSI, iqn="x", readOnly=True), disk(ISCSI, iqn="x", readOnly=True), False, id="iSCSI, both read"),
        pytest.param(
            disk(RBD, monitors=["m"], image="i"), disk(RBD, monitors=["m", "n"], image="i", pool="rbd"), True, id="RBD"
        ),
        pytest.param(
            disk(RBD, monitors=["m"], image="i"), disk(RBD, monitors=["n"], image="i"), False, id="RBD, other cluster"
        ),
        pytest.param(
            disk(RBD, monitors=["m"], image="i"), disk(RBD, monitors=["m"], image="i", pool="p"), False, id="other pool"
        ),
        pytest.param(disk(RBD, monitors="m", image=7), disk(RBD, monitors=None, image=7), False, id="RBD, nonsense"),
    ],
)
def test_disks_clash(one: Any, other: Any, clash: bool) -> None:
    assert one.clashes(other) is clash
    assert other.clashes(one) is clash


def test_a_question_without_a_pod_is_a_fault() -> None:
    with pytest.raises(LookupError, match=r"PodBlock\.pod"):
        the_pod(one_shape(State().shapes.shape_of(pod("p"))))
