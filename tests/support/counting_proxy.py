"""A proxy in front of PostgreSQL that counts what noise cannot move: statements, and waits for their answers."""

from __future__ import annotations

import socket
import threading
from collections import Counter

STATEMENT = b"C"
"""The server's message that a command is complete."""
ROUND_TRIP = b"Z"
"""The server's message that it has answered everything and waits: the client has waited for it, too."""


class CountingProxy:
    """Passes everything on, and counts the server's messages by their kind."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.counted: Counter[bytes] = Counter()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            threading.Thread(target=self._to_server, args=(client, server), daemon=True).start()
            threading.Thread(target=self._to_client, args=(server, client), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        while data := _received(client):
            server.sendall(data)
        server.close()

    def _to_client(self, server: socket.socket, client: socket.socket) -> None:
        unread = b""
        while data := _received(server):
            unread = self._count(unread + data)
            client.sendall(data)
        client.close()

    def _count(self, data: bytes) -> bytes:
        """Count the whole messages: a letter, then the length of the rest. What is left belongs to the next one."""
        at = 0
        while len(data) >= at + 5:
            end = at + 1 + int.from_bytes(data[at + 1 : at + 5], "big")
            if len(data) < end:
                break
            self.counted[data[at : at + 1]] += 1
            at = end
        return data[at:]


def _received(end: socket.socket) -> bytes:
    try:
        return end.recv(1 << 16)
    except OSError:
        return b""
