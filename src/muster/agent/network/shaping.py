"""How much may pass: token buckets on a pod's own cable, and one tree of shares for each direction of the uplink.

Figures are worked out here and encoded for the kernel; `networks` sends them. Pure.

    cable         TBF: the pod's limit, a ceiling. One inside its namespace (sends), one on the host's end (receives).
    uplink tree   HTB: root class = the uplink; below it one class for each pod with a request (rate: its request, ceil: the
                  uplink), and one for all that have none. Classes that want more than their rate share what the others leave,
                  in the proportion of their requests.
"""

from __future__ import annotations

import errno
import math
import struct
from typing import Final

from muster.agent.network.netlink import CREATE, EXCLUSIVE, REPLACE, Message, attribute, nested, text, u32

MAJOR: Final = 1
ROOT: Final = 0xFFFFFFFF
TREE: Final = MAJOR << 16

RATE_BPS_MIN: Final = 8_000
"""What the kernel is told at least: a class without any rate is refused."""
RATE_BPS_MAX: Final = 10**13

_NEWQDISC, _DELQDISC, _GETQDISC = 36, 37, 38
_NEWTCLASS, _DELTCLASS, _GETTCLASS = 40, 41, 42
NEW_CLASS: Final = _NEWTCLASS
GET_CLASS: Final = _GETTCLASS
_TCMSG: Final = struct.Struct("=BxxxiIII")
_KIND, _OPTIONS = 1, 2
_RATE: Final = struct.Struct("=BBHhHI")
_ETHERNET: Final = 1
"""The link layer of a rate. With it the kernel needs no table of transmission times."""
_TICKS_PER_S: Final = 15_625_000
"""Of the packet scheduler's clock, in which buffers are written: 64 ns each."""
_U32_MAX: Final = 2**32 - 1

_BURST_S: Final = 0.025
_QUEUE_S: Final = 0.100
_BURST_BYTES_MIN: Final = 6_000
_BURST_BYTES_MAX: Final = 64 * 2**20
_QUEUE_BYTES_MIN: Final = 131_072
_QUEUE_BYTES_MAX: Final = 64 * 2**20
_LUMP_BYTES_MIN: Final = 6_000
_LUMP_BYTES_MAX: Final = 65_536
_QUANTUM_BYTES_MIN: Final = 1_600
_QUANTUM_BYTES_MAX: Final = 200_000


def clamp_bps(bps: int) -> int:
    return min(max(bps, RATE_BPS_MIN), RATE_BPS_MAX)


def burst_bytes(bps: int) -> int:
    """What may pass at once: 25 milliseconds' worth, so that a busy machine that comes late can catch up."""
    return min(max(_BURST_BYTES_MIN, int(bps / 8 * _BURST_S)), _BURST_BYTES_MAX)


def queue_bytes(bps: int) -> int:
    """What may wait: a tenth of a second's worth, and two of the largest packets."""
    return min(max(_QUEUE_BYTES_MIN, int(bps / 8 * _QUEUE_S)), _QUEUE_BYTES_MAX)


def lump_bytes(bps: int | None) -> int:
    """The largest lump that a sender under this ceiling hands over at once: a millisecond's worth.

    Nearby receivers tempt TCP to hand over 64 KiB at a time. On a slow link, one such lump that is lost costs more than
    the queue's whole worth of fairness.
    """
    return _LUMP_BYTES_MAX if bps is None else min(max(_LUMP_BYTES_MIN, int(bps / 8 * 0.001)), _LUMP_BYTES_MAX)


def quantum_bytes(rate_bps: int, uplink_bps: int) -> int:
    """What a class may borrow in its turn: in the proportion of its rate, so that the uplink as a whole is about 200 kB."""
    share = rate_bps / max(uplink_bps, 1)
    return min(max(math.ceil(share * _QUANTUM_BYTES_MAX), _QUANTUM_BYTES_MIN), _QUANTUM_BYTES_MAX)


def _tc(index: int, handle: int, parent: int) -> bytes:
    return _TCMSG.pack(0, index, handle, parent, 0)


def _rate(bps: int) -> bytes:
    return _RATE.pack(0, _ETHERNET, 0, 0, 0, min(bps // 8, _U32_MAX))


def _ticks(size_bytes: int, bps: int) -> int:
    return min(int(size_bytes * 8 * _TICKS_PER_S / bps), _U32_MAX)


def _rate64(kind: int, bps: int) -> bytes:
    return attribute(kind, struct.pack("=Q", bps // 8)) if bps // 8 > _U32_MAX else b""


# -- ceilings of cables ------------------------------------------------------------------------------------------------------


def set_ceiling(index: int, bps: int) -> Message:
    """A token bucket at the root of an interface: new, or the same with another figure."""
    bps = clamp_bps(bps)
    burst = burst_bytes(bps)
    parameters = (
        _rate(bps) + _RATE.pack(0, 0, 0, 0, 0, 0) + struct.pack("=III", queue_bytes(bps) + burst, _ticks(burst, bps), 0)
    )
    options = nested(_OPTIONS, attribute(1, parameters), _rate64(4, bps), u32(6, burst))
    body = _tc(index, MAJOR << 16, ROOT) + text(_KIND, "tbf") + options
    return Message(_NEWQDISC, CREATE | REPLACE, body, f"a ceiling of {bps} bit/s")


def clear_ceiling(index: int, *fine: int) -> Message:
    return Message(_DELQDISC, 0, _tc(index, 0, ROOT), "taking a ceiling away", fine)


# -- trees of the uplink -----------------------------------------------------------------------------------------------------


def classid(minor: int) -> int:
    return TREE | minor


def plant_tree(index: int, rest_minor: int) -> Message:
    """The tree at the root of an interface. What names no class goes where those without a request go."""
    options = nested(_OPTIONS, attribute(2, struct.pack("=IIIII", 3, 10, rest_minor, 0, 0)))
    body = _tc(index, TREE, ROOT) + text(_KIND, "htb") + options
    return Message(_NEWQDISC, CREATE | EXCLUSIVE, body, "the tree of the uplink", (errno.EEXIST,))


def fell_tree(index: int, *fine: int) -> Message:
    return Message(_DELQDISC, 0, _tc(index, 0, ROOT), "taking the tree of the uplink away", fine)


def set_share(index: int, minor: int, parent_minor: int, rate_bps: int, uplink_bps: int) -> Message:
    """A class: new, or the same with other figures. `parent_minor` 0: below the tree itself."""
    uplink_bps = clamp_bps(uplink_bps)
    rate_bps = min(clamp_bps(rate_bps), uplink_bps)
    parameters = (
        _rate(rate_bps)
        + _rate(uplink_bps)
        + struct.pack(
            "=IIIII",
            _ticks(burst_bytes(rate_bps), rate_bps),
            _ticks(burst_bytes(uplink_bps), uplink_bps),
            quantum_bytes(rate_bps, uplink_bps),
            0,
            0,
        )
    )
    options = nested(_OPTIONS, attribute(1, parameters), _rate64(6, rate_bps), _rate64(7, uplink_bps))
    body = _tc(index, classid(minor), classid(parent_minor)) + text(_KIND, "htb") + options
    return Message(_NEWTCLASS, CREATE, body, f"a share of {rate_bps} of {uplink_bps} bit/s")


def set_queue(index: int, minor: int, uplink_bps: int) -> Message:
    """The queue of a class, bounded in bytes: what waits longer is lost, so that senders notice."""
    body = _tc(index, 0, classid(minor)) + text(_KIND, "bfifo")
    body += attribute(_OPTIONS, struct.pack("=I", queue_bytes(clamp_bps(uplink_bps))))
    return Message(_NEWQDISC, CREATE | REPLACE, body, "the queue of a share")


def clear_share(index: int, minor: int, *fine: int) -> Message:
    return Message(_DELTCLASS, 0, _tc(index, classid(minor), 0), "taking a share away", fine)


def list_classes(index: int) -> bytes:
    """The body of a dump request."""
    return _tc(index, 0, 0)


def class_minor(body: bytes) -> int:
    """Of one answer to `list_classes`."""
    return int(_TCMSG.unpack_from(body)[2]) & 0xFFFF
