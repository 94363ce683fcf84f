"""Tests reach this machine only: a connection to any other is an error, here and in the server under test."""
from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable


class NetworkBlocked(RuntimeError):
    """Something tried to leave this machine during a test."""


def _is_here(host: object) -> bool:
    if host in (None, "", b"", "localhost", b"localhost"):
        return True
    text = host.decode() if isinstance(host, bytes) else str(host)
    try:
        address = ipaddress.ip_address(text.split("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _require_here(host: object) -> None:
    if not _is_here(host):
        raise NetworkBlocked(f"a test tried to reach {host!r}; tests run without a network.")


def block_network(patch=setattr) -> None:
    """Guard every socket of this process. ``patch(object, name, value)`` may be one that is undone later."""
    connect, connect_ex, resolve = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def guarded_connect(self, address):
        if isinstance(address, tuple):                  # a path is a local socket
            _require_here(address[0])
        return connect(self, address)

    def guarded_connect_ex(self, address):
        if isinstance(address, tuple):
            _require_here(address[0])
        return connect_ex(self, address)

    def guarded_resolve(host, *args, **kwargs):
        _require_here(host)
        return resolve(host, *args, **kwargs)

    patch(socket.socket, "connect", guarded_connect)
    patch(socket.socket, "connect_ex", guarded_connect_ex)
    patch(socket, "getaddrinfo", guarded_resolve)
    for name in ("gethostbyname", "gethostbyname_ex", "gethostbyaddr"):
        patch(socket, name, _guarded_look_up(getattr(socket, name)))
    for name in ("sendto", "sendmsg"):
        if hasattr(socket.socket, name):
            patch(socket.socket, name, _guarded_send(getattr(socket.socket, name)))


def _guarded_look_up(look_up: Callable) -> Callable:
    def guarded(host):
        _require_here(host)
        return look_up(host)

    return guarded


def _guarded_send(send: Callable) -> Callable:
    """Where to is the last argument, a pair for a machine; a connected socket is told none."""
    def guarded(self, *args):
        if isinstance(args[-1], tuple):
            _require_here(args[-1][0])
        return send(self, *args)

    return guarded
