"""`python -m tests.histories`: random histories, each from its own seed, until one breaks a promise."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from tests.histories import plan as plans
from tests.histories.run import run_history


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description=__doc__)
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--seed", type=int, default=None, help="of the first history; the others follow it")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long clients and faults go on")
    parser.add_argument("--rounds", type=int, default=1, help="how many histories")
    parser.add_argument("--keep", type=Path, default=None, help="keep every history below this directory")
    parser.add_argument("--plant", default="", help="a fault of planted.py, to see it found")
    given = parser.parse_args()
    first = secrets.randbelow(1 << 32) if given.seed is None else given.seed
    print(f"seed {first}", flush=True)
    failed = 0
    for seed in range(first, first + given.rounds):
        parent = given.keep or Path(tempfile.gettempdir())
        parent.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix=f"history-{given.store}-{seed}-", dir=parent))
        plan = plans.make(given.store, seed, given.seconds)
        plan.planted = given.plant
        verdict = run_history(plan, directory)
        print(verdict, flush=True)
        failed += bool(verdict.violations)
        if not verdict.violations and given.keep is None:
            shutil.rmtree(directory)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
