"""A server process of its own, to be killed: `python -m tests.support.web_server PLACE` prints its port."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import uvicorn

from holdfast import Engine
from holdfast.web.application import app
from tests.support.web import a_flow, by_token

ROOT = Path(__file__).parents[2]


class Server:
    """A server that is killed and started again, at another port each time."""

    def __init__(self, place: str) -> None:
        self._place = place
        self.port = 0
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.support.web_server", self._place]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()


def main(place: str) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    with Engine.open(place, flows=[a_flow()]) as engine:
        application = app(engine, authenticate=by_token, page=False)
        server = uvicorn.Server(uvicorn.Config(application, log_level="warning", http="h11", ws="none"))
        print(listening.getsockname()[1], flush=True)
        asyncio.run(server.serve(sockets=[listening]))


if __name__ == "__main__":
    main(sys.argv[1])
