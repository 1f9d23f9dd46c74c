"""A server process of its own, to be killed: `python -m tests.support.killed_server PLACE` prints its port."""

from __future__ import annotations

import asyncio
import socket
import sys

import uvicorn

from holdfast import Engine
from holdfast.web.application import app
from tests.support.web import a_flow, by_token


def main(place: str) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    with Engine.open(place, flows=[a_flow()]) as engine:
        application = app(engine, authenticate=by_token, page=False)
        server = uvicorn.Server(uvicorn.Config(application, log_level="warning", http="h11", ws="none"))
        print(listening.getsockname()[1], flush=True)
        asyncio.run(server.serve(sockets=[listening]))


if __name__ == "__main__":
    main(sys.argv[1])
