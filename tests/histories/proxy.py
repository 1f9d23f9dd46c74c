"""A network between the processes of a history and their server, that can be cut, hung, slowed and closed."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable

from tests.support.cutting_proxy import COMMIT

CHUNK = 1 << 16


class Link:
    """One connection through the proxy."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.passing = threading.Event()
        self.passing.set()

    def cut(self) -> None:
        """Both sides learn at once that the other is gone."""
        self.passing.set()
        for end in (self.client, self.server):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # cut already


class Network:
    """Passes everything on, until it is told to do otherwise."""

    def __init__(self, port: int, rng: random.Random) -> None:
        self._target = port
        self._rng = rng
        self._links: set[Link] = set()
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = int(self._listening.getsockname()[1])
        self.refusing = False
        self.delay = 0.0
        self.commit_cuts = 0.0
        """The chance of a COMMIT to be lost, or of its answer."""
        self.cut_commits = 0
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections, and end those that are there."""
        self._closed = True
        self._listening.close()
        self.cut(1.0)

    def cut(self, part: float) -> int:
        """Cut this part of the connections; how many."""
        links = self._some(part)
        for link in links:
            link.cut()
        return len(links)

    def hang(self, part: float) -> Callable[[], None]:
        """From now on nothing passes through this part of the connections, though both ends take what is sent."""
        hung = self._some(part)
        for link in hung:
            link.passing.clear()

        def pass_again() -> None:
            for link in hung:
                link.passing.set()

        return pass_again

    def heal(self) -> None:
        """What was held back arrives, late."""
        self.refusing, self.delay, self.commit_cuts = False, 0.0, 0.0
        for link in self._some(1.0):
            link.passing.set()

    def _some(self, part: float) -> list[Link]:
        with self._lock:
            return [link for link in self._links if self._rng.random() < part]

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listening.accept()
            except OSError:
                continue
            try:
                if self.refusing:
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                client.close()
                continue
            for end in (client, server):
                end.settimeout(None)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = Link(client, server)
            with self._lock:
                self._links.add(link)
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(link, source, target), daemon=True).start()

    def _pass_on(self, link: Link, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(CHUNK):
                link.passing.wait()
                if self.delay:
                    time.sleep(self._rng.uniform(0, self.delay))
                if source is link.client and COMMIT.search(data) and self._rng.random() < self.commit_cuts:
                    self._cut_commit(link, data)
                    break
                target.sendall(data)
        except OSError:
            pass  # cut
        link.cut()
        with self._lock:
            known = link in self._links
            self._links.discard(link)
        if not known:  # the other direction has ended before
            link.client.close()
            link.server.close()

    def _cut_commit(self, link: Link, data: bytes) -> None:
        """The client does not learn whether its COMMIT was made; half of them were."""
        self.cut_commits += 1
        if self._rng.random() < 0.5:
            link.client.shutdown(socket.SHUT_WR)  # first, so that no answer slips through
            link.server.sendall(data)
            time.sleep(self._rng.choice([0, 0, 0.02]))
