"""Two parties find out which items both of them have, and nothing else of each other's: a private set intersection.

    psi.py task.json       take part in a task; the file is what Kuscia renders from app.yaml (without it: the environment)

Protocol (elliptic-curve Diffie-Hellman). Each party draws a fresh secret, a and b. H maps an item to a point of Curve25519.

    alice                                                bob
    shuffles; sends a*H(x) for her items x        ->     multiplies by b, returns b*a*H(x) in the same order
    multiplies by a, keeps a*b*H(y)               <-     sends b*H(y) for his items y, shuffled too
    x is common when b*a*H(x) is among the a*b*H(y): the order of the two multiplications does not matter

Points travel as their u-coordinate, all that X25519 computes with: u(k*P) depends on k and u(P) alone. Why that is sound, what
each side learns, and what this does not protect from: README.md beside this file.

Concurrency: one task, one connection; the party that is named first listens, the other calls until it is answered.
Invariants: no item and no H(item) is ever sent or reported; nothing that the peer sends is used before it was checked; memory
is bounded by `ITEMS_MAX`, a frame by what must come next, every wait by a time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import hashlib
import ipaddress
import json
import os
import secrets
import struct
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

PROTOCOL: Final = "muster-psi/1"
PORT_NAME: Final = "exchange"
ITEMS_MAX: Final = 5_000_000
ITEM_LEN_MAX: Final = 4096
BATCH: Final = 1024
HELLO, MASKED, DOUBLED, FAILED = 1, 2, 3, 4  # kinds of frames
HELLO_BYTES_MAX: Final = 4096
_HEADER: Final = struct.Struct("!BI")  # kind, length of what follows
_P: Final = 2**255 - 19
_A: Final = 486662


class Failure(Exception):
    """Why this party can't go on. The text never has an item in it: the peer is told."""


# -- the group ----------------------------------------------------------------------------------------------------------------


def is_on_curve(u: int) -> bool:
    """Whether u is that of a point of Curve25519, not of its twist: u^3 + A*u^2 + u is a square modulo p, and not 0.
    The Jacobi symbol by Euclid's way takes a fifth of the time of the power (p - 1) / 2."""
    a, n, is_minus = u * (u * (u + _A) + 1) % _P, _P, False
    while a:
        zeros = (a & -a).bit_length() - 1
        a >>= zeros
        is_minus ^= bool(zeros & 1 and n & 7 in (3, 5)) ^ bool(a & n & 2)
        a, n = n % a, a
    return n == 1 and not is_minus


def hash_to_curve(item: str, salt: str) -> bytes:
    """A point whose logarithm nobody knows: hashes of the item and a counter, until one is on the curve; twice on average."""
    for counter in range(256):
        digest = hashlib.sha512(json.dumps([PROTOCOL, salt, counter, item]).encode()).digest()
        u = int.from_bytes(digest, "little") % _P
        if is_on_curve(u):
            return u.to_bytes(32, "little")
    raise AssertionError("none of 256 hashes was on the curve")


class Secret:
    """A party's secret of one run. X25519 makes it a multiple of 8, so products are in the group of prime order."""

    def __init__(self) -> None:
        self._key = X25519PrivateKey.generate()

    def mask(self, points: Sequence[bytes]) -> list[bytes]:
        return [self._key.exchange(X25519PublicKey.from_public_bytes(point)) for point in points]

    def double(self, points: Sequence[bytes]) -> list[bytes]:
        """Points of the peer, multiplied. Each is checked first: below p, on the curve, not of small order."""
        try:
            numbers = [int.from_bytes(point, "little") for point in points]
            if not all(u < _P and is_on_curve(u) for u in numbers):
                raise ValueError
            return self.mask(points)
        except ValueError:
            raise Failure("the peer sent something that is not a point of the curve; does it run the same program?") from None


# -- the connection -----------------------------------------------------------------------------------------------------------


class Channel:
    """Frames. Each side knows of what kind the next one must be, and how long, so that nothing else takes memory."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silence_s: float) -> None:
        self._reader, self._writer, self._silence_s = reader, writer, silence_s
        self.sent_bytes = self.received_bytes = 0

    def send(self, kind: int, payload: bytes) -> None:
        """Does not wait: both parties send first, then receive, and would wait for each other. One frame is small."""
        self._writer.write(_HEADER.pack(kind, len(payload)) + payload)
        self.sent_bytes += _HEADER.size + len(payload)

    async def receive(self, kind: int, length_min: int, length_max: int) -> bytes:
        try:
            async with asyncio.timeout(self._silence_s):
                await self._writer.drain()
                found, length = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
                if found == FAILED and length <= HELLO_BYTES_MAX:
                    text = (await self._reader.readexactly(length)).decode("utf-8", "replace")
                    raise Failure(f"the peer has given up: {text!r}")
                if found != kind or not length_min <= length <= length_max:
                    raise Failure(f"the peer sent {length:,} bytes of kind {found}; {length_max:,} of kind {kind} were to come")
                payload = await self._reader.readexactly(length)
        except TimeoutError:
            raise Failure(f"the peer was silent for {self._silence_s:g} s") from None
        except (OSError, EOFError):
            raise Failure("the peer closed the connection too early; its log may say why") from None
        self.received_bytes += _HEADER.size + length
        return payload

    async def swap(self, kind: int, points: Sequence[bytes], expected: int) -> list[bytes]:
        """Points there, points back."""
        self.send(kind, b"".join(points))
        payload = await self.receive(kind, expected * 32, expected * 32)
        return [payload[at : at + 32] for at in range(0, len(payload), 32)]

    async def close(self, failure: str = "") -> None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(5):
                if failure:
                    self.send(FAILED, failure.encode()[:HELLO_BYTES_MAX])
                self._writer.close()
                await self._writer.wait_closed()


async def listen(task: Task, items: int) -> tuple[Channel, int]:
    """The first that greets as the peer does. Others are told why not; a probe that says nothing is ignored."""
    found: asyncio.Future[tuple[Channel, int]] = asyncio.get_running_loop().create_future()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = Channel(reader, writer, task.silence_s)
        try:
            peer_items = task.check_hello(await channel.receive(HELLO, 0, HELLO_BYTES_MAX))
            if found.done():
                raise Failure("another peer was here first")
            channel.send(HELLO, task.hello(items))
            found.set_result((channel, peer_items))
        except Failure as e:
            await channel.close(str(e))

    try:
        server = await asyncio.start_server(greet, *task.own_address, backlog=16)
    except OSError as e:
        raise Failure(f"can't listen on port {task.own_address[1]}: {e}") from None
    try:
        async with asyncio.timeout(task.wait_s):
            return await found
    except TimeoutError:
        raise Failure(f"{task.peer} did not call within {task.wait_s:g} s") from None
    finally:
        server.close()


async def call(task: Task, items: int) -> tuple[Channel, int]:
    """Until somebody answers: the peer may start later, and its name be unknown for a while."""
    loop = asyncio.get_running_loop()
    until, pause_s = loop.time() + task.wait_s, 0.1
    while True:
        try:
            async with asyncio.timeout(10):
                channel = Channel(*await asyncio.open_connection(*task.peer_address), task.silence_s)
            channel.send(HELLO, task.hello(items))
            payload = await channel.receive(HELLO, 0, HELLO_BYTES_MAX)
            break
        except (OSError, Failure) as e:  # a TimeoutError is an OSError
            if loop.time() > until or "has given up" in str(e):
                raise Failure(f"{task.peer} can't be reached at {task.peer_address}: {e}") from None
        await asyncio.sleep(pause_s)
        pause_s = min(2.0, pause_s * 1.5)
    return channel, task.check_hello(payload)


# -- the task -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """What this party was told."""

    name: str
    me: str
    peer: str
    is_listener: bool
    own_address: tuple[str, int]
    peer_address: tuple[str, int]
    receivers: list[str]
    options: Mapping[str, Any]
    wait_s: float
    silence_s: float

    @classmethod
    def read(cls, told: Mapping[str, str]) -> Task:
        """Failure when a member is missing or has the wrong shape; KeyError and the like name it."""
        try:
            cluster, ports, options = (
                json.loads(told[name]) for name in ("TASK_CLUSTER_DEFINE", "ALLOCATED_PORTS", "TASK_INPUT_CONFIG")
            )
            names, own = [party["name"] for party in cluster["parties"]], cluster.get("selfPartyIdx", 0)
            me, peer = names[own], names[1 - own]
            endpoints = [
                next(s["endpoints"][0] for s in party["services"] if s["portName"] == PORT_NAME) for party in cluster["parties"]
            ]
            number = next(int(port["port"]) for port in ports["ports"] if port["name"] == PORT_NAME)
            host, _, peer_number = endpoints[1 - own].partition(":")
            hosts = dict(options.get("hosts") or {})
            receivers = sorted(options.get("receivers", names))
            if len(names) != 2 or not set(receivers) <= set(names) or me not in options["inputs"]:
                raise ValueError(f"two parties, receivers among them, an input for {me}")
            # A number is missing where the parties' gateways stand in between: they listen on 80.
            peer_address = (hosts.get(peer, host), int(peer_number or 80))
            waits = float(options.get("waitSeconds", 300)), float(options.get("silenceSeconds", 120))
            address = (_own_host(hosts.get(me, endpoints[own])), number)
            return cls(told.get("TASK_ID", ""), me, peer, own == 0, address, peer_address, receivers, options, *waits)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, StopIteration) as e:
            raise Failure(f"the task's description does not fit: {type(e).__name__}: {e}; see app.yaml and job.yaml") from None

    def hello(self, items: int) -> bytes:
        said = {"protocol": PROTOCOL, "task": self.name, "party": self.me, "receivers": self.receivers, "items": items}
        return json.dumps(said).encode()

    def check_hello(self, payload: bytes) -> int:
        """How many items the peer has."""
        try:
            said = json.loads(payload)
            items = said["items"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise Failure("what is there does not speak this protocol") from None
        ours = {"protocol": PROTOCOL, "task": self.name, "party": self.peer, "receivers": self.receivers}
        for key, value in ours.items():
            if said.get(key) != value:
                found, wanted = json.dumps(said.get(key))[:80], json.dumps(value)
                raise Failure(f"{key}: {found} instead of {wanted}; both parties must be told the same")
        most = min(ITEMS_MAX, int(self.options.get("peerItemsMax", ITEMS_MAX)))
        if type(items) is not int or not 0 <= items <= most:
            raise Failure(f"items: {str(items)[:20]}: {self.me} compares with at most {most:,} (peerItemsMax)")
        return items


def _own_host(endpoint: str) -> str:
    """A task has a network of its own and listens everywhere in it; where its endpoint is an address, only there."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(endpoint.partition(":")[0]))
    return "0.0.0.0"  # noqa: S104 (inside the task's own network)


def read_items(path: Path, column: str) -> list[str]:
    """The different items of a column, in their order; spaces around them and ways to write accents do not count."""
    found: dict[str, None] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            if column not in (rows.fieldnames or ()):
                raise Failure(f"{path}: there is no column {column!r}")
            for row in rows:
                item = unicodedata.normalize("NFC", (row[column] or "").strip())
                if len(item) > ITEM_LEN_MAX or len(found) >= ITEMS_MAX:
                    raise Failure(f"{path}, line {rows.line_num}: at most {ITEMS_MAX:,} items of {ITEM_LEN_MAX:,} characters")
                if item:
                    found[item] = None
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise Failure(f"{path}: can't be read: {e}") from None
    return list(found)


async def intersect(
    channel: Channel, task: Task, items: Sequence[str], peer_items: int, done: Callable[[float], None]
) -> list[str]:
    """The common items, in the order of `items`; none for a party that is not to receive them."""
    secret, receives, peer_receives = Secret(), task.me in task.receivers, task.peer in task.receivers
    shuffled = secrets.SystemRandom().sample(items, len(items))
    mine: dict[bytes, str] = {}
    theirs: set[bytes] = set()
    for start in range(0, total := max(len(items), peer_items), BATCH):
        batch = shuffled[start : start + BATCH]
        masked = secret.mask([hash_to_curve(item, task.name) for item in batch])
        got = await channel.swap(MASKED, masked, min(BATCH, max(0, peer_items - start)))
        doubled = secret.double(got)
        back = await channel.swap(DOUBLED, doubled if peer_receives else (), len(batch) if receives else 0)
        if receives:
            mine.update(zip(back, batch, strict=True))
            theirs.update(doubled)
        done(min(1.0, (start + BATCH) / total))
    if receives and (len(mine) != len(items) or len(theirs) != peer_items):
        raise Failure("the peer sent a point twice: its items repeat, or its answers are not those of this run")
    common = {item for point, item in mine.items() if point in theirs}
    return [item for item in items if item in common]


def report(progress: float, records: Mapping[str, int]) -> None:
    """For whoever looks at the task. A node that offers nothing for it is no reason to fail."""
    with contextlib.suppress(OSError, KeyError), open(os.environ["MUSTER_REPORT"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"progress": round(progress, 3), "records": records}) + "\n")


def write_result(path: Path, column: str, items: Sequence[str]) -> None:
    """All of it or nothing."""
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([[column], *([item] for item in items)])
        part.replace(path)
    except OSError as e:
        raise Failure(f"{path}: the result can't be written: {e}") from None


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def take_part(task: Task) -> None:
    column, output = str(task.options.get("column", "id")), Path(task.options.get("output", "common.csv"))
    items = read_items(Path(task.options["inputs"][task.me]), column)
    say(f"{task.me} has {len(items):,} items, and waits for {task.peer}")
    channel, peer_items = await (listen if task.is_listener else call)(task, len(items))
    say(f"{task.peer} is there, and has {peer_items:,}")
    records = {"items": len(items), "peerItems": peer_items}
    try:
        common = await intersect(channel, task, items, peer_items, lambda part: report(part, records))
    except Failure as e:
        await channel.close(str(e))
        raise
    await channel.close()
    moved = f"{channel.sent_bytes:,} bytes sent, {channel.received_bytes:,} received"
    if task.me not in task.receivers:
        say(f"done; the result is not for {task.me}; {moved}")
        return
    write_result(output, column, common)
    report(1.0, {**records, "common": len(common)})
    say(f"done: {len(common):,} items are common; {moved}; written to {output}")
    for item in common[: int(task.options.get("show", 0))]:
        say(f"  {item}")


def main(arguments: Sequence[str]) -> int:
    try:
        told = json.loads(Path(arguments[0]).read_bytes()) if arguments else dict(os.environ)
        asyncio.run(take_part(Task.read(told)))
    except (Failure, OSError, ValueError) as e:
        sys.stderr.write(f"psi: {e}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
