"""The `format` words that schemas may use for strings, and what each lets through. Unknown words check nothing. Pure."""

from __future__ import annotations

import binascii
import datetime
import ipaddress
import re
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from muster.objects.time import parse_time

_ORDINARY_TIME = re.compile(  # one that exists in every year and month, so that most need no closer look
    r"[12]\d{3}-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?Z", re.ASCII
)
_SIX_DECIMALS = re.compile(r":\d\d\.\d{6}(?!\d)", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_HOSTNAME = re.compile(
    r"(?=.{1,253}\Z)[a-zA-Z0-9]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?(\.[a-zA-Z0-9]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?)*"
)
_UUID = re.compile(r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?([0-9a-fA-F])[0-9a-fA-F]{3}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}")
_MAC = re.compile(r"[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5}|[0-9a-fA-F]{4}(\.[0-9a-fA-F]{4}){2}")
_GO_DURATION = re.compile(r"[+-]?(0|(\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h))*)", re.ASCII)
_LONG_DURATION = re.compile(
    r"\d+ *(ns|us|µs|ms|s|sec|secs|m|min|mins|h|hr|hrs|hour|hours|d|day|days|w|wk|week|weeks)( .+)?", re.ASCII
)
_HEX_COLOUR = re.compile(r"#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})")
_EMAIL = re.compile(r"[^@\s<>]{1,64}@[^@\s<>]{1,253}")
_OBJECT_ID = re.compile(r"[0-9a-fA-F]{24}")


def is_date_time(text: str) -> bool:
    return _ORDINARY_TIME.fullmatch(text) is not None or not _raises(parse_time, text)


def is_micro_time(text: str) -> bool:
    return _SIX_DECIMALS.search(text) is not None and is_date_time(text)


def is_base64(text: str) -> bool:
    """Standard alphabet with padding; line breaks are allowed, as in Go."""
    plain = text.replace("\n", "").replace("\r", "")
    return not _raises(lambda t: binascii.a2b_base64(t, strict_mode=True), plain) if plain else True


def _is_date(text: str) -> bool:
    return bool(_DATE.fullmatch(text)) and not _raises(datetime.date.fromisoformat, text)


def _is_ipv4(text: str) -> bool:
    return not _raises(ipaddress.IPv4Address, text)


def _is_ipv6(text: str) -> bool:
    return not _raises(ipaddress.IPv6Address, text)


def _is_cidr(text: str) -> bool:
    return "/" in text and not _raises(lambda t: ipaddress.ip_network(t, strict=False), text)


def _is_uri(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return bool(parts.scheme) or text.startswith("/")


def _is_uuid(version: str) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        found = _UUID.fullmatch(text)
        return found is not None and (not version or found[1] == version)

    return check


def _matches(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: pattern.fullmatch(text) is not None


def _raises(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return True
    return False


MICRO_TIME = (is_micro_time, "a time with microseconds, such as 2026-11-15T20:05:41.000000Z")
"""What is asked of a date-time with `time.MICRO`, and what a message calls it."""

STRING_FORMATS: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "date-time": (is_date_time, "a time such as 2026-11-15T20:05:41Z"),
    "datetime": (is_date_time, "a time such as 2026-11-15T20:05:41Z"),
    "date": (_is_date, "a date such as 2026-11-15"),
    "byte": (is_base64, "base64"),
    "ipv4": (_is_ipv4, "an IPv4 address such as 10.0.0.1"),
    "ipv6": (_is_ipv6, "an IPv6 address such as fd00::1"),
    "cidr": (_is_cidr, "a network such as 10.0.0.0/8"),
    "hostname": (_matches(_HOSTNAME), "a host name such as a.example.com"),
    "uri": (_is_uri, "a URI such as https://example.com/x"),
    "email": (_matches(_EMAIL), "a mail address"),
    "mac": (_matches(_MAC), "a MAC address such as 02:00:00:00:00:01"),
    "uuid": (_is_uuid(""), "a UUID"),
    "uuid3": (_is_uuid("3"), "a version 3 UUID"),
    "uuid4": (_is_uuid("4"), "a version 4 UUID"),
    "uuid5": (_is_uuid("5"), "a version 5 UUID"),
    "duration": (
        lambda text: bool(_GO_DURATION.fullmatch(text) or _LONG_DURATION.fullmatch(text)),
        "a duration such as 1h30m",
    ),
    "hexcolor": (_matches(_HEX_COLOUR), "a colour such as #ff0000"),
    "bsonobjectid": (_matches(_OBJECT_ID), "24 hexadecimal digits"),
}
"""Format word to check and to what a message calls it."""

INTEGER_RANGES: Mapping[str, tuple[int, int]] = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}
