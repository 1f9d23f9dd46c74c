"""A proxy in front of PostgreSQL that cuts connections at the worst moment: around a COMMIT."""

from __future__ import annotations

import random
import re
import socket
import threading
import time

# A statement that is nothing but COMMIT: after the length of a simple query, or after the name, which is empty, of a
# statement in a pipeline.
COMMIT = re.compile(rb"[\x00\x0b]COMMIT\x00")


class CuttingProxy:
    """Passes everything on; of the COMMITs, some are swallowed, and of some the answer is.

    Half of the cut connections never carried their COMMIT to the server, the other half did, and the client
    cannot tell which.
    """

    def __init__(self, port: int, rng: random.Random) -> None:
        self._target = port
        self._rng = rng
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.chance = 0.0
        self.before = 0
        self.after = 0
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._closed = True
        self._listening.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                continue
            threading.Thread(target=self._to_server, args=(client, server), daemon=True).start()
            threading.Thread(target=self._to_client, args=(server, client), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := client.recv(1 << 16):
                if COMMIT.search(data) and self._rng.random() < self.chance:
                    if self._rng.random() < 0.5:
                        self.before += 1
                    else:
                        self.after += 1
                        # First the way back is closed, so that no answer can slip through.
                        client.shutdown(socket.SHUT_WR)
                        server.sendall(data)
                        time.sleep(self._rng.choice([0, 0, 0.02]))
                    break
                server.sendall(data)
        except OSError:
            pass
        # Closing alone says nothing to anybody while the other thread waits in recv: the server would hold the
        # transaction, and its locks, of a client that is gone.
        _cut(client, server)
        for end in (client, server):
            end.close()

    def _to_client(self, server: socket.socket, client: socket.socket) -> None:
        try:
            while data := server.recv(1 << 16):
                client.sendall(data)
        except OSError:
            pass
        _cut(client, server)


def _cut(*ends: socket.socket) -> None:
    for end in ends:
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
