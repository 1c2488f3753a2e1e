"""Has the image of a pod here: found, pulled, or taken from a directory that the configuration allows.

On the agent's event loop; unpacking is in threads, a few at a time. Two pods that want the same image wait for one pull.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, TypeVar

from muster.agent.config import Runc
from muster.agent.contracts import AgentError, Image, Missing
from muster.agent.images import ImageStore
from muster.agent.images_collecting import KEPT_S, Disk, read_disk, room_wanted
from muster.agent.images_names import ImageId, LocalPath, Name, Reference, default_policy, is_registry_allowed, parse
from muster.agent.images_registry import Registry
from muster.objects.quantity import Quantity
from muster.objects.time import Clock, wall_clock

log = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 3
T = TypeVar("T")


class Images:
    def __init__(
        self,
        store: ImageStore,
        config: Runc,
        *,
        clock: Clock = wall_clock,
        disk: Callable[[Path], Disk] = read_disk,
    ) -> None:
        self._store = store
        self._clock, self._disk = clock, disk
        self._is_short = False
        self._config = config
        self._bytes_max = int(Quantity.parse(config.images_bytes_max).fraction())
        self._registry = Registry(config.insecure_registries, self._bytes_max)
        self._busy: dict[str, asyncio.Lock] = {}
        self._slots = asyncio.Semaphore(AT_ONCE_MAX)

    def missing(self) -> Sequence[Missing]:
        why = self._registry.why_not()
        return [Missing("image registries", why, "only images that were loaded here can be used")] if why else []

    async def get(self, text: str, policy: str) -> Image:
        reference = parse(text)
        policy = default_policy(reference, policy)
        if policy not in ("Always", "IfNotPresent", "Never"):
            raise AgentError("InvalidImageName", f"imagePullPolicy: {policy[:40]!r}: it is Always, IfNotPresent or Never")
        if isinstance(reference, LocalPath):
            self._check_path(text, reference)
        lock = self._busy.setdefault(text, asyncio.Lock())
        try:
            async with lock:
                return await self._get(text, reference, policy)
        finally:
            if not lock.locked():
                self._busy.pop(text, None)

    async def collect(self) -> Sequence[str]:
        """Make the room that the configuration wants, see `images_collecting`. Ids of the images that are gone."""
        return await asyncio.to_thread(self._collect)

    def _collect(self) -> Sequence[str]:
        if not self._store.root.is_dir():
            return ()
        config, now = self._config, self._clock()
        room_bytes = room_wanted(self._disk(self._store.root), config.images_high_percent, config.images_low_percent)
        unused_since = now - config.images_unused_seconds if config.images_unused_seconds else -math.inf
        gone, short_bytes = self._store.collect(
            self._bytes_max, room_bytes=room_bytes, unused_since=unused_since, kept_since=now - KEPT_S
        )
        if short_bytes and not self._is_short:
            log.warning(
                "the disk of %s is more than %d %% full, and no image is left that could go: %d MiB too much are used",
                self._store.root, config.images_high_percent, short_bytes >> 20,
            )  # fmt: skip
        self._is_short = short_bytes > 0
        return gone

    async def _get(self, text: str, reference: Reference, policy: str) -> Image:
        if isinstance(reference, LocalPath):
            async with self._slots:
                return await asyncio.to_thread(self._store.unpack, reference, [], "loaded")
        found = await asyncio.to_thread(self._store.find, reference)
        if isinstance(reference, ImageId) or policy == "Never":
            if found is None:
                raise AgentError(
                    "ErrImageNeverPull",
                    f"image {text!r} is not on this node, and is not pulled (imagePullPolicy {policy}); "
                    "load it there with: muster image load PATH --name NAME",
                )
            return found
        if found is not None and (policy == "IfNotPresent" or self._is_loaded(reference)):
            # What the operator has loaded stands for the registry's.
            return found
        return await self._pull(text, reference, found)

    def _is_loaded(self, name: Name) -> bool:
        named = self._store.named(name)
        return named is not None and named.origin == "loaded"

    async def _pull(self, text: str, name: Name, found: Image | None) -> Image:
        if not is_registry_allowed(name.host, self._config.registries):
            raise AgentError(
                "ErrImagePull",
                f"image {text!r} is not on this node, and its registry {name.host!r} is not one that it may pull from "
                "(runc.registries); load it there with: muster image load PATH --name NAME",
            )
        digest = await self._registry.digest(name)
        named = self._store.named(name)
        if found is not None and named is not None and named.digest == digest:
            return found
        async with self._slots:
            stack = ExitStack()
            try:
                scratch = await _whole(asyncio.to_thread(stack.enter_context, self._store.scratch()))
                layout = await self._registry.fetch(name, digest, scratch / "layout")
                source = f"{name.path}@{digest}"
                return await _whole(asyncio.to_thread(self._store.unpack, layout, [str(name)], "pulled", digest, source))
            finally:
                await _whole(asyncio.to_thread(stack.close))

    def _check_path(self, text: str, reference: LocalPath) -> None:
        """A manifest's author must not read the host's files: only what lies where the operator says."""
        real = os.path.realpath(reference.path)
        allowed = [os.path.realpath(directory) for directory in self._config.image_directories]
        if not any(real == directory or real.startswith(directory.rstrip("/") + "/") for directory in allowed):
            where = ", ".join(self._config.image_directories) or "none"
            raise AgentError(
                "InvalidImageName",
                f"image {text[:120]!r}: it is not below a directory that this node allows (runc.imageDirectories: {where}); "
                "name an image that was loaded there with: muster image load PATH --name NAME",
            )


async def _whole(work: Coroutine[Any, Any, T]) -> T:
    """A thread can't be cancelled: whoever gives up waits until it is done, so that nothing goes on behind one's back."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
