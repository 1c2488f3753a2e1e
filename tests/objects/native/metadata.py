"""Metadata that a server refuses, and some that it takes."""

from __future__ import annotations

from tests.objects.native.case import RBAC, Case, spec

METADATA = [
    Case("plain name", "", "ConfigMap", {"metadata": {"name": "a.b-c"}}),
    Case("upper case name", "", "ConfigMap", {"metadata": {"name": "Abc"}}, "metadata.name"),
    Case("long name", "", "ConfigMap", {"metadata": {"name": "a" * 254}}, "metadata.name"),
    Case("service name with a dot", "", "Service", {"metadata": {"name": "a.b"}, **spec(ports=[{"port": 1}])}, "metadata.name"),
    Case(
        "service name with a digit first",
        "",
        "Service",
        {"metadata": {"name": "1a"}, **spec(ports=[{"port": 1}])},
        "metadata.name",
    ),
    Case("namespace name with a dot", "", "Namespace", {"metadata": {"name": "a.b"}}, "metadata.name"),
    Case("role name with a colon", RBAC, "Role", {"metadata": {"name": "system:x"}}),
    Case("role name with a slash", RBAC, "Role", {"metadata": {"name": "a/b"}}, "metadata.name"),
    Case("label value", "", "ConfigMap", {"metadata": {"labels": {"a": "b c"}}}, "metadata.labels"),
    Case("label key", "", "ConfigMap", {"metadata": {"labels": {"-a": "b"}}}, "metadata.labels"),
    Case("annotation key", "", "ConfigMap", {"metadata": {"annotations": {"a b": "c"}}}, "metadata.annotations"),
    Case("annotation key in upper case", "", "ConfigMap", {"metadata": {"annotations": {"Example.com/A": "any text ü"}}}),
    Case("annotations too large", "", "ConfigMap", {"metadata": {"annotations": {"a": "x" * 262_145}}}, "metadata.annotations"),
    Case("finalizer without domain", "", "ConfigMap", {"metadata": {"finalizers": ["mine"]}}, "metadata.finalizers[0]"),
    Case("finalizer with domain", "", "ConfigMap", {"metadata": {"finalizers": ["example.com/mine", "orphan"]}}),
    Case(
        "owner without uid",
        "",
        "ConfigMap",
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": ""}]}},
        "metadata.ownerReferences[0].uid",
    ),
    Case(
        "two controllers",
        "",
        "ConfigMap",
        {
            "metadata": {
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": u, "controller": True} for u in ("1", "2")
                ]
            }
        },
        "metadata.ownerReferences",
    ),
]
