from __future__ import annotations

from typing import Any

import pytest

from muster.cli.describing import describe
from muster.objects.resources import Resource

JOB = Resource(group="kuscia.secretflow", version="v1alpha1", kind="KusciaJob", plural="kusciajobs")
SECRET = Resource(group="", version="v1", kind="Secret", plural="secrets")
NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z

OBJECT = {
    "apiVersion": "kuscia.secretflow/v1alpha1",
    "kind": "KusciaJob",
    "metadata": {
        "name": "train",
        "namespace": "cross-domain",
        "creationTimestamp": "2027-01-15T07:55:00Z",
        "generation": 2,
        "labels": {"b": "2", "a": "1"},
        "annotations": {"note": "x", "kubectl.kubernetes.io/last-applied-configuration": "{...}"},
        "ownerReferences": [{"kind": "Queue", "name": "q", "controller": True}],
        "finalizers": ["muster.dev/job"],
    },
    "spec": {"initiator": "alice", "tasks": [{"alias": "t"}]},
    "status": {
        "phase": "Running",
        "observedGeneration": 1,
        "conditions": [
            {
                "type": "Ready",
                "status": "False",
                "reason": "Waiting",
                "message": "for bob",
                "lastTransitionTime": "2027-01-15T07:59:30Z",
            }
        ],
    },
}
EVENTS: list[dict[str, Any]] = [
    {
        "type": "Normal",
        "reason": "Second",
        "message": "b",
        "lastTimestamp": "2027-01-15T07:58:00Z",
        "count": 3,
        "source": {"component": "c"},
    },
    {"type": "Normal", "reason": "First", "note": "a", "eventTime": "2027-01-15T07:57:00.000000Z", "reportingComponent": "d"},
]


def test_everything() -> None:
    assert (
        describe(OBJECT, JOB, EVENTS, NOW)
        == """\
Name:         train
Namespace:    cross-domain
Kind:         KusciaJob (kuscia.secretflow/v1alpha1)
Created:      2027-01-15T07:55:00Z (5m ago)
Labels:       a=1
              b=2
Annotations:  note: x
Owners:       Queue/q (controller)
Finalizers:   muster.dev/job
Generation:   2 (controller has seen 1)
Spec:
  initiator: alice
  tasks:
  - alias: t
Status:
  phase: Running
  observedGeneration: 1
Conditions:
  TYPE    STATUS   SINCE   REASON    MESSAGE
  Ready   False    30s     Waiting   for bob
Events:
  LAST SEEN   TYPE     REASON   FROM   MESSAGE
  3m          Normal   First    d      a
  2m (x3)     Normal   Second   c      b
"""
    )


def test_secrets_show_no_values() -> None:
    text = describe({"metadata": {"name": "s"}, "data": {"token": "aHVudGVyMg=="}, "type": "Opaque"}, SECRET, [], NOW)
    assert "aHVudGVyMg" not in text
    assert "token: 12 characters, encoded" in text
    assert "Type: Opaque" in text


@pytest.mark.parametrize(
    "obj",
    [
        {},
        {"metadata": None, "spec": None, "status": None},
        {"metadata": {"name": "x", "creationTimestamp": "nonsense", "labels": []}, "status": "text"},
        {"metadata": {"name": "x"}, "status": {"conditions": "none"}, "data": [1]},
        {"metadata": {"name": "x"}, "status": {"conditions": [{"type": "A", "status": "True"}]}},
    ],
)
def test_odd_objects_are_described_too(obj: dict[str, object]) -> None:
    assert describe(obj, JOB, [], NOW).endswith("Events: <none>\n")


def test_many_events_are_cut_to_the_latest() -> None:
    events = [{"reason": f"r{i}", "lastTimestamp": f"2027-01-15T07:{i // 60:02}:{i % 60:02}Z"} for i in range(80)]
    text = describe({"metadata": {"name": "x"}}, JOB, events, NOW)
    assert "... 30 older events" in text
    assert "r79" in text
    assert "r29 " not in text
