"""Requests that nobody should send, by seed: manifests with one thing wrong or ten, odd queries, wrong media, broken bodies.

`HostileRequests(seed, targets).next()` gives the next; the same seed gives the same requests. What it creates has one of few
names in one of few namespaces, so that a server that is asked a hundred thousand times does not rightly grow by what it stores.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

NAMESPACES = ("hostile-0", "hostile-1", "hostile-2")
_NAMES = tuple(f"x{number}" for number in range(8))
_MEDIA = ("application/json", "application/yaml", "text/plain", "application/vnd.kubernetes.protobuf", "application/cbor", "")
_PATCHES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)
_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 2**64, 1.5, 1e308, -0.0),
    *(
        "",
        "x",
        " ",
        "\x00",
        "名",
        "a" * 64,
        "A" * 300,
        "b" * 70_000,
        "../../etc/passwd",
        "1",
        "100m",
        "1Ei",
        "-5",
        "1e99",
        "NaN",
    ),
    *(
        "2026-01-01T00:00:00Z",
        "2026-13-45T99:99:99Z",
        "v1",
        "kubernetes.io/x",
        "*",
        "${x}",
        "\ud7ff\U0001f4a9",
        "%00",
        "'\"<>&",
    ),
    *([], {}, [[]], [{}], {"": ""}, {"a": None}, [None], {"name": "x"}, [{"name": "x"}, {"name": "x"}]),
)
_QUERY_KEYS = (
    *("limit", "continue", "labelSelector", "fieldSelector", "resourceVersion", "resourceVersionMatch", "fieldManager"),
    *("fieldValidation", "force", "propagationPolicy", "gracePeriodSeconds", "pretty", "dryRun", "orphanDependents", "x"),
)
_QUERY_VALUES = (
    *(
        "",
        "0",
        "1",
        "-1",
        "true",
        "false",
        "x",
        "a=b",
        "a!=b,c in (d,e)",
        "a in (",
        "!",
        "metadata.name=x",
        "spec.nodeName=",
        "All",
    ),
    *(
        "Exact",
        "NotOlderThan",
        "Strict",
        "Ignore",
        "Orphan",
        "Foreground",
        "99999999999999999999",
        "\x00",
        "名",
        "," * 200,
        "=" * 50,
    ),
)
_WORDS = (
    *(
        "api",
        "apis",
        "v1",
        "v1beta1",
        "apps",
        "namespaces",
        "default",
        "pods",
        "nodes",
        "status",
        "scale",
        "binding",
        "eviction",
    ),
    *(
        "token",
        "log",
        "exec",
        "watch",
        "openapi",
        "v2",
        "v3",
        "metrics",
        "healthz",
        "muster",
        "x",
        "",
        ".",
        "..",
        "%2e%2e",
        "\x00",
        "名",
        "*",
    ),
)
_BROKEN = (
    b"",
    b"{",
    b"null",
    b"[]",
    b"{}{}",
    b'{"a":1,"a":2}',
    b'{"a":NaN}',
    b"\xff\xfe",
    b"k8s\x00",
    b"k8s\x00\xff\xff\xff\xff",
    b"- &a [*a]",
)


@dataclass(frozen=True)
class Target:
    """One kind that the server serves."""

    path: str
    """Of the collection, with {namespace} where there are namespaces."""
    api_version: str
    kind: str
    verbs: frozenset[str]
    subresources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None


def targets_of(groups: Mapping[str, Mapping[str, Any]]) -> list[Target]:
    """Of discovery documents by path (`/api/v1`, `/apis/apps/v1`, ...)."""
    found = []
    for base, document in groups.items():
        resources = document["resources"]
        for resource in resources:
            if "/" in resource["name"]:
                continue
            below = [r["name"].partition("/")[2] for r in resources if r["name"].startswith(resource["name"] + "/")]
            path = (
                f"{base}/namespaces/{{namespace}}/{resource['name']}"
                if resource["namespaced"]
                else f"{base}/{resource['name']}"
            )
            version = document["groupVersion"]
            found.append(Target(path, version, resource["kind"], frozenset(resource["verbs"]), tuple(below)))
    return found


class HostileRequests:
    def __init__(self, seed: int, targets: Sequence[Target], manifests: Sequence[Mapping[str, Any]]) -> None:
        """`manifests`: good ones, which are then spoilt."""
        self._random = random.Random(seed)
        # A webhook of chance would rightly refuse all writes of everybody: such kinds are only read.
        self._targets = [target for target in targets if not target.api_version.startswith("admissionregistration")]
        self._good: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for manifest in manifests:
            self._good.setdefault((str(manifest["apiVersion"]), str(manifest["kind"])), []).append(manifest)

    def next(self) -> Request:
        kind = self._random.choices((self._write, self._patch, self._read, self._delete, self._anywhere), (40, 20, 20, 10, 10))[
            0
        ]
        return kind()

    # -- kinds of requests -----------------------------------------------------------------------------------------------------

    def _write(self) -> Request:
        chance, target = self._random, self._target("create")
        body = self._manifest(target)
        for _ in range(chance.choice((0, 1, 1, 2, 10))):
            body = self._spoilt(body)
        path, method = self._collection(target), "POST"
        if chance.random() < 0.4:
            path, method = f"{path}/{chance.choice(_NAMES)}{self._subresource(target)}", chance.choice(("PUT", "PUT", "POST"))
        return Request(method, path + self._query(), self._headers(chance.choice(_MEDIA[:1] * 8 + _MEDIA)), self._encoded(body))

    def _patch(self) -> Request:
        chance, target = self._random, self._target("patch")
        media = chance.choice(_PATCHES)
        body: Any = self._spoilt(self._manifest(target))
        if media.startswith("application/json-patch"):
            body = [self._operation(body) for _ in range(chance.randint(0, 4))]
        query = self._query(("fieldManager", "hostile") if chance.random() < 0.7 else None)
        path = f"{self._collection(target)}/{chance.choice(_NAMES)}{self._subresource(target)}{query}"
        return Request("PATCH", path, self._headers(media), self._encoded(body))

    def _read(self) -> Request:
        chance, target = self._random, self._random.choice(self._targets)
        path = self._collection(target)
        if chance.random() < 0.3:
            path += f"/{chance.choice(_NAMES)}{self._subresource(target)}"
        query = self._query(("watch", "true") if chance.random() < 0.05 else None)
        if "watch=true" in query:
            query += "&timeoutSeconds=1"
        return Request(chance.choice(("GET", "GET", "GET", "HEAD", "OPTIONS")), path + query, self._headers())

    def _delete(self) -> Request:
        chance, target = self._random, self._target("delete")
        path = f"{self._collection(target)}/{chance.choice(_NAMES)}"
        body = (
            self._spoilt({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "x"}})
            if chance.random() < 0.3
            else None
        )
        return Request(
            "DELETE", path + self._query(), self._headers("application/json"), None if body is None else self._encoded(body)
        )

    def _anywhere(self) -> Request:
        chance = self._random
        path = "/" + "/".join(quote(chance.choice(_WORDS), safe="%") for _ in range(chance.randint(0, 8)))
        method = chance.choice(("GET", "POST", "PUT", "PATCH", "TRACE", "PROPFIND"))
        return Request(
            method, path + self._query(), self._headers(chance.choice(_MEDIA)), self._encoded({"x": chance.choice(_ODD)})
        )

    # -- parts -----------------------------------------------------------------------------------------------------------------

    def _target(self, verb: str) -> Target:
        return self._random.choice([target for target in self._targets if verb in target.verbs])

    def _collection(self, target: Target) -> str:
        return target.path.replace("{namespace}", self._random.choice(NAMESPACES))

    def _subresource(self, target: Target) -> str:
        if target.subresources and self._random.random() < 0.3:
            return "/" + self._random.choice(target.subresources)
        return ""

    def _manifest(self, target: Target) -> dict[str, Any]:
        good = self._good.get((target.api_version, target.kind))
        found = json.loads(json.dumps(self._random.choice(good))) if good else {"spec": {}}
        found |= {"apiVersion": target.api_version, "kind": target.kind}
        found["metadata"] = {**(found.get("metadata") or {}), "name": self._random.choice(_NAMES)}
        found["metadata"].pop("namespace", None)
        return dict(found)

    def _spoilt(self, value: Any) -> Any:
        """A copy in which one thing is otherwise."""
        chance = self._random
        if isinstance(value, dict) and value and chance.random() < 0.85:
            key = chance.choice(list(value))
            match chance.randint(0, 9):
                case 0:
                    return {name: each for name, each in value.items() if name != key}
                case 1:
                    return {**value, chance.choice(("", "x", "spec", "名", "a.b/c", "metadata")): chance.choice(_ODD)}
                case _:
                    return {**value, key: self._spoilt(value[key])}
        if isinstance(value, list) and value and chance.random() < 0.85:
            at = chance.randrange(len(value))
            if chance.random() < 0.2:
                return [*value, *value[at : at + 1]] * chance.choice((1, 1, 50))
            return [*value[:at], self._spoilt(value[at]), *value[at + 1 :]]
        if chance.random() < 0.02:
            deep: Any = "x"
            for _ in range(chance.choice((20, 100, 3_000))):
                deep = {"a": deep} if chance.random() < 0.5 else [deep]
            return deep
        return chance.choice(_ODD)

    def _operation(self, value: Any) -> Any:
        chance = self._random
        path = "/" + "/".join(
            chance.choice(("metadata", "spec", "labels", "0", "-", "~0", "~2", "", "x")) for _ in range(chance.randint(0, 4))
        )
        operation = {
            "op": chance.choice(("add", "remove", "replace", "move", "copy", "test", "x")),
            "path": path,
            "value": chance.choice(_ODD),
        }
        if chance.random() < 0.3:
            operation["from"] = "/metadata"
        return operation if chance.random() < 0.9 else self._spoilt(value)

    def _query(self, extra: tuple[str, str] | None = None) -> str:
        chance = self._random
        pairs = [(chance.choice(_QUERY_KEYS), chance.choice(_QUERY_VALUES)) for _ in range(chance.choice((0, 0, 0, 1, 3)))]
        if extra is not None:
            pairs.append(extra)
        return "?" + "&".join(f"{quote(key)}={quote(value)}" for key, value in pairs) if pairs else ""

    def _headers(self, media: str = "") -> dict[str, str]:
        chance = self._random
        headers = {"content-type": media} if media else {}
        if chance.random() < 0.1:
            headers["accept"] = chance.choice(
                (
                    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
                    "application/yaml",
                    "text/html",
                    "*/*;q=x",
                    "," * 50,
                )
            )
        if chance.random() < 0.05:
            headers["impersonate-user"] = chance.choice(("x", "system:admin", "a" * 500))
        return headers

    def _encoded(self, value: Any) -> bytes:
        chance = self._random
        if chance.random() < 0.05:
            return chance.choice(_BROKEN)
        try:
            data = json.dumps(value).encode()
        except RecursionError:
            data = b"[" * 3_000 + b"]" * 3_000
        if chance.random() < 0.03:
            data = data[: chance.randint(0, len(data))]
        return data
