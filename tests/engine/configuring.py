"""A registry of small plugins, and documents from a few words, for the tests of the configuration."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from muster.engine.blocks import NodeBlock, PodBlock
from muster.engine.columns import Column, Mask
from muster.engine.configuration import (
    Configuration,
    ConfigurationInvalid,
    read,
)
from muster.engine.plugin import Plugin, Scope
from muster.engine.pods import PodRecord
from muster.engine.registry import Registry


class Filters(Plugin):
    def filter(self, pods: PodBlock, nodes: NodeBlock) -> Mask:
        raise AssertionError("not asked here")


class Both(Filters):
    def score(self, pods: PodBlock, nodes: NodeBlock) -> Column:
        raise AssertionError("not asked here")


class NodeName(Filters):
    name = "NodeName"


class TaintToleration(Both):
    name = "TaintToleration"


class Bandwidth(Both):
    name = "Bandwidth"

    class Args(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        strategy: str = "Spread"
        reclaim: bool = False


class MineArgs(msgspec.Struct, frozen=True, rename="camel"):
    """Without forbid_unknown_fields: the reader is strict by itself."""

    how_many: Annotated[int, msgspec.Meta(ge=0)] = 1
    words: tuple[str, ...] = ()
    levels: dict[str, int] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.how_many == 13:
            raise ValueError("howMany: 13 brings bad luck")
        if self.how_many == 14:
            raise RuntimeError("out of order")


class Mine(Both):
    name = "Mine"
    scope = Scope.NODE
    Args = MineArgs


class Resizes(Plugin):
    name = "Resizes"

    def resize(self, pod: PodRecord, node: str) -> dict[str, int]:
        return {}


class NeedsArgs(Plugin):
    name = "NeedsArgs"

    class Args(msgspec.Struct, frozen=True):
        rack: str


class Breaks(Plugin):
    name = "Breaks"

    def __init__(self, args: Any = None) -> None:
        raise RuntimeError("no licence")


OURS: dict[str, type[Plugin]] = {
    plugin.name: plugin for plugin in (NodeName, TaintToleration, Bandwidth, Mine, Resizes, NeedsArgs, Breaks)
}
REGISTRY = Registry(
    OURS,
    builtin={"NodeName": "", "TaintToleration": "", "NodeResourcesFit": "fit", "Bandwidth": ""},
    problems=["plugin 'Lost' of package lost (lost:Lost) is left out: importing it failed: ImportError: gone"],
)
HEAD = {"apiVersion": "muster.dev/v1alpha1", "kind": "KubeSchedulerConfiguration"}


def document(*profiles: Any, **more: Any) -> dict[str, Any]:
    return {**HEAD, **({"profiles": list(profiles)} if profiles else {}), **more}


def plugins(**points: Any) -> dict[str, Any]:
    return {"plugins": points}


def enabled(*names: str | tuple[str, int]) -> dict[str, Any]:
    return {"enabled": [{"name": n} if isinstance(n, str) else {"name": n[0], "weight": n[1]} for n in names]}


def disabled(*names: str) -> dict[str, Any]:
    return {"disabled": [{"name": name} for name in names]}


def config(name: str, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args}


def of(profile: Any, **more: Any) -> Configuration:
    return read(document(profile, **more), REGISTRY)


def errors_of(value: Any) -> list[str]:
    with pytest.raises(ConfigurationInvalid) as caught:
        read(value, REGISTRY)
    return list(caught.value.errors)
