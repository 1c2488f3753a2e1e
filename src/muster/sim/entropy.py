"""Chance, by seed: every random choice of a simulation comes from here.

Each component draws from a stream of its own, named by a path (`entropy.stream("faults", "agent-3")`), so that adding a
component or a draw in one place does not shift what all others draw. Streams depend on the seed and the path alone: not on
the process, the hash seed, or the order in which they were made.
"""

from __future__ import annotations

import hashlib
import random  # noqa: TID251 - the one place where a simulation makes its seeded generators

Chance = random.Random
"""A seeded generator: the type of what `Entropy.stream` gives."""


class Entropy:
    """A tree of independent random streams under one seed."""

    def __init__(self, seed: int, *path: str) -> None:
        self.seed = seed
        self.path = path
        self._own = self._generator(path)

    def stream(self, *path: str) -> Chance:
        """A fresh generator for `path`; asking twice gives two generators that draw the same numbers."""
        return self._generator((*self.path, *path))

    def fork(self, *path: str) -> Entropy:
        return Entropy(self.seed, *self.path, *path)

    def bytes(self, count: int) -> bytes:
        """The next `count` bytes of this node's own stream: what a store takes for uids and generated names."""
        return self._own.randbytes(count)

    def _generator(self, path: tuple[str, ...]) -> Chance:
        text = "\x00".join((str(self.seed), *path))
        return random.Random(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest()))  # noqa: S311 - not secret
