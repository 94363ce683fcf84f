"""Tests reach this machine only, whichever way somebody takes: what holds in them holds of the pack."""
from __future__ import annotations

import asyncio
import http.client
import socket
import urllib.request
from collections.abc import Callable

import pytest

from kit.offline import NetworkBlocked

NAME, NUMBER, SIX = "example.com", "192.0.2.1", "2001:db8::1"     # of documents: nobody is there


async def _datagram(host: str) -> None:
    await asyncio.get_running_loop().create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=(host, 53))


def _send(host: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as plain:
        plain.sendto(b"x", (host, 53))


def _requests(host: str) -> None:
    import requests
    requests.get(f"http://[{host}]/" if ":" in host else f"http://{host}/", timeout=5)


WAYS: dict[str, Callable[[str], object]] = {
    "a socket": lambda host: socket.create_connection((host, 80), 5),
    "datagrams": _send,
    "urllib": lambda host: urllib.request.urlopen(f"http://[{host}]/" if ":" in host else f"http://{host}/", timeout=5),
    "http.client": lambda host: http.client.HTTPConnection(host, 80, timeout=5).request("GET", "/"),
    "asyncio": lambda host: asyncio.run(asyncio.open_connection(host, 80)),
    "datagrams of asyncio": lambda host: asyncio.run(_datagram(host)),
    "requests": _requests,
    "a name looked up": lambda host: socket.getaddrinfo(host, 80),
    "a name looked up the old way": lambda host: socket.gethostbyname(host),
    "an address looked up": lambda host: socket.gethostbyaddr(host),
}


@pytest.mark.parametrize("host", [NAME, NUMBER, SIX])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_out_is_closed(way, host):
    with pytest.raises(NetworkBlocked, match="tests run without a network"):
        WAYS[way](host)


def test_this_machine_is_reached():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        with socket.create_connection(("localhost", server.getsockname()[1]), 5):
            plain.sendto(b"x", ("127.0.0.1", 9))
            assert socket.gethostbyname("localhost").startswith("127.")
