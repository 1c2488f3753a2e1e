"""An object in the other versions of its kind, for managers that speak one of them.

An entry of managedFields names fields as its own version does. So what a write did to the fields of somebody who wrote in
another version is seen by comparing the object in that version, before and after. Who wrote in another group is forgotten at
the next write. Both are as in Kubernetes. Custom kinds need none of this: all their versions have one shape.

Pure. Where a kind has one version, or none that differs by more than its name, `Versions` is empty and nothing here costs.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from muster.objects.patch.fieldset import NO_FIELDS, Fields, difference
from muster.objects.patch.managers import Managers
from muster.objects.patch.shape import Shape
from muster.objects.patch.typed import Changes, compare, field_set, in_terms_of, prune
from muster.objects.status import Raw


class Version(NamedTuple):
    """`read` makes an object of this version out of one of the version at hand, `write` the reverse."""

    read: Callable[[Raw], Raw]
    write: Callable[[Raw], Raw]
    shape: Shape


Versions = Mapping[str, Version | None]
"""By apiVersion, those beside the version at hand; None for those of another group."""
NO_VERSIONS: Final[Versions] = types.MappingProxyType({})


class Comparison:
    """What changed from `old` to `new`, as each version names it."""

    def __init__(self, old: Any, new: Any, shape: Shape, beside: Versions) -> None:
        self.here = compare(old, new, shape)
        self._old = old
        self._new = new
        self._beside = beside
        self._elsewhere: dict[str, Changes] = {}

    def of(self, api_version: str) -> Changes:
        """As it names them; the version at hand for one that is none of the others."""
        version = self._beside.get(api_version)
        if version is None:
            return self.here
        found = self._elsewhere.get(api_version)
        if found is None:
            found = compare(version.read(self._old), version.read(self._new), version.shape)
            self._elsewhere[api_version] = found
        return found


def remembered(managers: Managers, beside: Versions) -> Managers:
    """Those who did not write in another group."""
    if not beside:
        return managers
    return {k: entry for k, entry in managers.items() if beside.get(entry.api_version, ()) is not None}


def terms_here(  # noqa: PLR0917 - the set, where it is from, where it is to be understood
    fields: Fields, api_version: str, raw: Raw, shape: Shape, beside: Versions, stated: Fields = NO_FIELDS
) -> Fields:
    """`fields`, which `api_version` names, as the version of `raw` names them: what `raw` has not without them. `stated`: see
    `in_terms_of`."""
    version = beside.get(api_version)
    if version is None:
        return in_terms_of(fields, shape, raw, stated)
    there = version.read(raw)
    left = version.write(prune(there, in_terms_of(fields, version.shape, there), {}, version.shape))
    return difference(field_set(raw, shape), field_set(left, shape))
