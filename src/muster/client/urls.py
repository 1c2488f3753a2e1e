"""Server and proxy URLs, and which proxy the environment asks for.

The rules for NO_PROXY are those of Go's programs (kubectl among them): host names match themselves and their subdomains, a
leading dot subdomains only, addresses and CIDR blocks match addresses, `*` matches all, and loopback is never proxied.

Pure: the environment is handed in.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit


class UrlError(ValueError):
    """A server or proxy URL that cannot be used."""


def split_server(text: str, *, default_scheme: str = "http") -> tuple[str, str]:
    """The server URL without a trailing slash, and its host. A missing scheme is filled in."""
    url = _split(text if "://" in text else f"{default_scheme}://{text}")
    if url.scheme not in ("http", "https"):
        raise UrlError(f'"{text}" must begin with https:// or http://')
    if url.username is not None or url.query or url.fragment:
        raise UrlError(f'"{text}" must have no user, query or fragment; give credentials in the user entry')
    return f"{url.scheme}://{url.netloc}{url.path}".rstrip("/"), url.hostname or ""


def check_proxy_url(text: str) -> None:
    url = _split(text)
    if url.scheme not in ("http", "https"):
        raise UrlError(f'"{text}": only http:// and https:// proxies are supported')


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def proxy_from_environment(server: str, environ: Mapping[str, str]) -> str:
    """The proxy for `server` by HTTPS_PROXY or HTTP_PROXY and NO_PROXY, upper or lower case; "" for none."""
    url = _split(server)
    name = f"{url.scheme}_proxy"
    proxy = environ.get(name.upper()) or environ.get(name, "")
    host = (url.hostname or "").lower()
    port = url.port or (443 if url.scheme == "https" else 80)
    no_proxy = environ.get("NO_PROXY") or environ.get("no_proxy", "")
    if not proxy or is_loopback(host) or any(_excludes(rule.strip().lower(), host, port) for rule in no_proxy.split(",")):
        return ""
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    check_proxy_url(proxy)
    return proxy


def _excludes(rule: str, host: str, port: int) -> bool:
    if not rule:
        return False
    if rule == "*":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if "/" in rule:
        try:
            return address is not None and address in ipaddress.ip_network(rule, strict=False)
        except ValueError:
            return False
    name, colon, rule_port = rule.rpartition(":")
    if colon and rule_port.isdigit() and ("]" in name or ":" not in name):
        if int(rule_port) != port:
            return False
        rule = name
    rule = rule.strip("[]")
    if address is not None:
        return rule == host
    bare = rule.removeprefix("*").lstrip(".")
    is_suffix_only = rule.startswith((".", "*."))
    return host.endswith(f".{bare}") or (host == bare and not is_suffix_only)


def _split(text: str) -> SplitResult:
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError as error:
        raise UrlError(f'"{text}" is not a URL: {error}') from error
    if not url.hostname or any(char.isspace() for char in text):
        raise UrlError(f'"{text}" is not a URL with a host, like https://host:6443')
    return url
