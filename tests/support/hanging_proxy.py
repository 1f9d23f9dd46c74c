"""A proxy in front of PostgreSQL whose connections hang: the peer's kernel acknowledges, and nobody answers."""

from __future__ import annotations

import re
import socket
import threading


class HangingProxy:
    """Passes everything on until a connection hangs; those that are made later are sound."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._pattern: re.Pattern[bytes] | None = None
        self._delivers = False
        self._generation = 0
        self._wires: list[_Wire] = []
        self.hung = threading.Event()
        """Set as soon as one hangs for what it was about to say."""
        self.given_up = threading.Event()
        """Set as soon as the client has closed one that hung."""
        threading.Thread(target=self._accept, daemon=True).start()

    def hang_at(self, pattern: re.Pattern[bytes], *, delivered: bool) -> None:
        """Let the next connection that says this hang, with or without the server having heard it."""
        self._delivers = delivered
        self.hung.clear()
        self._pattern = pattern

    def hang_all(self) -> None:
        """Let every connection hang that is open now."""
        self._generation += 1

    def close(self) -> None:
        """Take no more connections, and end those that are there."""
        self._listening.close()
        for wire in self._wires:
            wire.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            wire = _Wire(client, server, self._generation)
            self._wires.append(wire)
            threading.Thread(target=self._to_server, args=(wire,), daemon=True).start()
            threading.Thread(target=self._to_client, args=(wire,), daemon=True).start()

    def _to_server(self, wire: _Wire) -> None:
        while data := _received(wire.client):
            if self._pattern is not None and self._pattern.search(data):
                self._pattern = None
                wire.hangs = True
                if self._delivers:
                    _sent(wire.server, data)
                self.hung.set()
            elif not self._is_hanging(wire):
                _sent(wire.server, data)
        if self._is_hanging(wire):
            self.given_up.set()
        wire.end(wire.server)
        wire.client.close()

    def _to_client(self, wire: _Wire) -> None:
        while data := _received(wire.server):
            if not self._is_hanging(wire):
                _sent(wire.client, data)
        if not self._is_hanging(wire):
            wire.end(wire.client)
        wire.server.close()

    def _is_hanging(self, wire: _Wire) -> bool:
        return wire.hangs or wire.generation < self._generation


class _Wire:
    def __init__(self, client: socket.socket, server: socket.socket, generation: int) -> None:
        self.client = client
        self.server = server
        self.generation = generation
        self.hangs = False

    def end(self, side: socket.socket) -> None:
        """Let who reads from this side find its end; whoever reads closes it."""
        try:
            side.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        self.end(self.client)
        self.end(self.server)


def _received(end: socket.socket) -> bytes:
    try:
        return end.recv(1 << 16)
    except OSError:
        return b""


def _sent(end: socket.socket, data: bytes) -> None:
    try:
        end.sendall(data)
    except OSError:
        pass  # whoever reads from it finds that out, too
