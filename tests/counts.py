"""How many examples a property is tried on."""

from __future__ import annotations

import os

from hypothesis import settings

SOAK = bool(os.environ.get("MUSTER_SOAK"))


def examples(usual: int) -> int:
    """So many in an ordinary run; as many as the profile says in `make soak`."""
    profile = settings.default
    return profile.max_examples if SOAK and profile is not None else usual
