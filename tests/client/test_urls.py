from __future__ import annotations

import pytest

from muster.client.urls import UrlError, proxy_from_environment

PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("server", "environ", "expected"),
    [
        pytest.param("https://a", {}, "", id="none"),
        pytest.param("https://a", {"HTTPS_PROXY": PROXY}, PROXY, id="upper case"),
        pytest.param("https://a", {"https_proxy": PROXY}, PROXY, id="lower case"),
        pytest.param("https://a", {"HTTP_PROXY": PROXY}, "", id="the other scheme"),
        pytest.param("http://a", {"HTTP_PROXY": "proxy:3128"}, PROXY, id="without a scheme"),
        pytest.param("https://127.0.0.1:6443", {"HTTPS_PROXY": PROXY}, "", id="loopback"),
        pytest.param("https://[::1]:6443", {"HTTPS_PROXY": PROXY}, "", id="loopback 6"),
        pytest.param("https://localhost", {"HTTPS_PROXY": PROXY}, "", id="localhost"),
        pytest.param("https://a.b.c", {"HTTPS_PROXY": PROXY, "NO_PROXY": "x, b.c"}, "", id="domain and below"),
        pytest.param("https://b.c", {"HTTPS_PROXY": PROXY, "NO_PROXY": "b.c"}, "", id="the domain itself"),
        pytest.param("https://b.c", {"HTTPS_PROXY": PROXY, "NO_PROXY": ".b.c"}, PROXY, id="below only"),
        pytest.param("https://a.b.c", {"HTTPS_PROXY": PROXY, "no_proxy": "*.b.c"}, "", id="star and below"),
        pytest.param("https://ab.c", {"HTTPS_PROXY": PROXY, "NO_PROXY": "b.c"}, PROXY, id="not a suffix of letters"),
        pytest.param("https://a", {"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}, "", id="everything"),
        pytest.param("https://10.1.2.3", {"HTTPS_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8"}, "", id="block"),
        pytest.param("https://11.1.2.3", {"HTTPS_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8,bad/x"}, PROXY, id="outside the block"),
        pytest.param("https://10.1.2.3", {"HTTPS_PROXY": PROXY, "NO_PROXY": "10.1.2.3"}, "", id="address"),
        pytest.param("https://a:6443", {"HTTPS_PROXY": PROXY, "NO_PROXY": "a:6443"}, "", id="with its port"),
        pytest.param("https://a", {"HTTPS_PROXY": PROXY, "NO_PROXY": "a:6443"}, PROXY, id="another port"),
        pytest.param("https://[fd00::2]", {"HTTPS_PROXY": PROXY, "NO_PROXY": "fd00::/16"}, "", id="block 6"),
    ],
)
def test_proxy_from_environment(server: str, environ: dict[str, str], expected: str) -> None:
    assert proxy_from_environment(server, environ) == expected


def test_a_proxy_that_cannot_be_used_is_named() -> None:
    with pytest.raises(UrlError, match="socks5"):
        proxy_from_environment("https://a", {"HTTPS_PROXY": "socks5://p:1"})
