"""Holdfast itself, measured the way its peers are."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

_BENCHMARKS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_BENCHMARKS / "peers"), str(_BENCHMARKS), str(_BENCHMARKS.parent / "src")]

import protocol
from measuring import flows, workers

from holdfast import Engine

CONCURRENCY = 128
FLOWS = {"five": flows.five_steps, "noop": flows.one_step}


def drain(options: argparse.Namespace) -> dict[str, Any]:
    with Engine.open(options.place, flows=flows.ALL) as engine:
        return {"seconds": workers.drain(engine, FLOWS[options.flow], options.jobs, CONCURRENCY).seconds}


def worker(options: argparse.Namespace) -> None:
    with Engine.open(options.place, flows=flows.ALL) as engine, engine.worker():
        protocol.wait_for_sigterm()


def client(options: argparse.Namespace) -> list[float]:
    with Engine.open(options.place, flows=flows.ALL) as engine:
        return protocol.submit_one_by_one(lambda n: engine.submit(flows.stamped, flows.Work(n)), options.jobs)


def here(options: argparse.Namespace) -> list[float]:
    with Engine.open(options.place, flows=flows.ALL) as engine, engine.worker():
        return protocol.submit_one_by_one(lambda n: engine.submit(flows.stamped, flows.Work(n)), options.jobs)


if __name__ == "__main__":
    protocol.main(drain=drain, worker=worker, client=client, here=here)
