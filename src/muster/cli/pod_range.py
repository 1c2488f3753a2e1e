"""Addresses for the pods of one `muster up`: a range of its own among all that may run on this machine.

The range is chosen once and kept in the data directory, since nodes never change theirs. It follows from the path of the
directory, and the next one is taken where the machine already has a route into it, so that two `muster up` beside each other,
or beside another cluster's network, do not give one address to two pods. Blocking, without state.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from muster.client.files import replace_file

FILE = "pod-range"
_FIRST = int(ipaddress.IPv4Address("10.64.0.0"))
_PREFIX = 18
_COUNT = 720
"""Up to 10.243.255.255: what lies above is a usual choice of clusters."""


def pod_range(data_dir: Path, routes: Path = Path("/proc/net/route")) -> str:
    """OSError when it can't be kept."""
    file = data_dir / FILE
    try:
        kept = ipaddress.IPv4Network(file.read_text().strip())
        if kept.prefixlen <= 24:
            return str(kept)
    except (OSError, ValueError):
        pass
    chosen = choose(str(data_dir.absolute()), read_routes(routes))
    replace_file(file, f"{chosen}\n".encode())
    return str(chosen)


def choose(name: str, taken: Sequence[ipaddress.IPv4Network]) -> ipaddress.IPv4Network:
    """The range that belongs to this name, or the next that overlaps none of `taken`. Pure."""
    start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    candidates = [ipaddress.IPv4Network((_FIRST + (start + n) % _COUNT * 2 ** (32 - _PREFIX), _PREFIX)) for n in range(_COUNT)]
    return next((one for one in candidates if not any(one.overlaps(other) for other in taken)), candidates[0])


def read_routes(path: Path) -> list[ipaddress.IPv4Network]:
    """The machine's routes but the default one; none where it does not tell."""
    found = []
    try:
        lines = path.read_text().splitlines()[1:]
    except OSError:
        return []
    for line in lines:
        fields = line.split()
        try:
            # Little-endian hexadecimal, as the kernel prints addresses.
            address, mask = (int.from_bytes(bytes.fromhex(fields[at]), "little") for at in (1, 7))
            if mask:
                found.append(ipaddress.IPv4Network((address, str(ipaddress.IPv4Address(mask))), strict=False))
        except (IndexError, ValueError):
            continue
    return found
