"""A reader of WebSocket text messages (RFC 6455), as much of it as following ComfyUI's events takes."""
from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import time
from urllib.parse import urlsplit

CONTINUATION, TEXT, CLOSE, PING, PONG = 0x0, 0x1, 0x8, 0x9, 0xA
CONNECT_LIMIT_S = 30
CHUNK_BYTES = 1 << 16


def parse_frame(buffer: bytes) -> tuple[int, bool, bytes, int] | None:
    """(opcode, whether the message ends here, payload, bytes used) of the first frame; None if incomplete."""
    if len(buffer) < 2:
        return None
    length, start = buffer[1] & 0x7F, 2
    if length >= 126:
        start = 4 if length == 126 else 10
        length = int.from_bytes(buffer[2:start], "big")
    if len(buffer) < max(start, 2) or len(buffer) < start + length:
        return None
    return buffer[0] & 0x0F, bool(buffer[0] & 0x80), bytes(buffer[start:start + length]), start + length


def client_frame(opcode: int, payload: bytes) -> bytes:
    """A frame with less than 126 bytes, masked as the protocol asks of clients."""
    mask = os.urandom(4)
    masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))
    return bytes([0x80 | opcode, 0x80 | len(payload)]) + mask + masked


class EventStream:
    """The JSON messages that a server sends to one client. Raises OSError when the connection breaks."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        self.socket = socket.create_connection((parts.hostname, port), CONNECT_LIMIT_S)
        if secure:
            context = ssl.create_default_context()
            self.socket = context.wrap_socket(self.socket, server_hostname=parts.hostname)
        self.buffer = bytearray()
        self.text = b""             # of a message whose end has not come yet
        self.in_text = False
        try:
            self._shake_hands(parts)
        except BaseException:
            self.close()
            raise

    def _shake_hands(self, parts) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        lines = (f"GET {target} HTTP/1.1", f"Host: {parts.netloc}", "Upgrade: websocket",
                 "Connection: Upgrade", f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", "")
        self.socket.sendall("\r\n".join(lines).encode())
        while b"\r\n\r\n" not in self.buffer:
            self._receive()
        head, _, rest = bytes(self.buffer).partition(b"\r\n\r\n")
        if head.split(b" ", 2)[1:2] != [b"101"]:
            status = head.splitlines()[0].decode("latin-1")
            raise ConnectionError(f"no WebSocket at {parts.netloc}{parts.path}: {status}")
        self.buffer[:] = rest

    def next(self, patience_s: float) -> dict | None:
        """The next message, or None if ``patience_s`` seconds pass without one.

        Binary messages are left out: they are previews of images.
        """
        limit = time.monotonic() + patience_s
        while True:
            frame = parse_frame(self.buffer)
            if frame is None:
                left = limit - time.monotonic()
                if left <= 0:
                    return None
                self.socket.settimeout(left)
                try:
                    self._receive()
                except TimeoutError:
                    return None
                continue
            opcode, is_last, payload, used = frame
            del self.buffer[:used]
            message = self._take(opcode, is_last, payload)
            if message is not None:
                return message

    def _take(self, opcode: int, is_last: bool, payload: bytes) -> dict | None:
        if opcode == CLOSE:
            raise ConnectionError("the server closed the connection.")
        if opcode == PING:
            self.socket.sendall(client_frame(PONG, payload))
            return None
        if opcode == PONG:
            return None
        if opcode != CONTINUATION:
            self.in_text, self.text = opcode == TEXT, b""
        if not self.in_text:
            return None
        self.text += payload
        return json.loads(self.text) if is_last else None

    def _receive(self) -> None:
        data = self.socket.recv(CHUNK_BYTES)
        if not data:
            raise ConnectionError("the server went away.")
        self.buffer += data

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *_) -> None:
        self.close()
