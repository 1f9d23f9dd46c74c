"""`python -m tests.mutation`: change the code, one small mistake at a time, and see whether a test notices.

Of our own, because mutmut and cosmic-ray run a fixed command over every mutant: with two thousand tests that enter
most functions of the store, servers to start and seeds to keep, an hour would go for some fifty mutants. Here a mutant
meets only the tests that enter its function (nearest.py), in a copy of the tree (trial.py), within a time.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tests.mutation.nearest import Nearest, Records, candidates, within
from tests.mutation.sites import Site, drawn
from tests.mutation.trial import Copy

ROOT = Path(__file__).parents[2]
ROUNDS = (4.0, 10.0)
"""Seconds of tests, as they took under the tracer: what survives the first is shown to more of them."""
PATIENCE = 60.0
"""Seconds for a round besides: a slow machine, servers to start. A mutant that takes longer hangs, and is noticed."""


class Mutant(NamedTuple):
    """A change of a module."""

    module: Path
    site: Site

    def __str__(self) -> str:
        return f"src/{self.module}:{self.site.line} {self.site.kind}"


def modules_of(tree: Path, name: str) -> list[Path]:
    """The modules below src that a name means: a folder or a module, with or without its package in front."""
    found = []
    for place in [tree / "src" / name, *(package / name for package in sorted((tree / "src").iterdir()))]:
        files = [place.with_suffix(".py")] if place.with_suffix(".py").is_file() else sorted(place.rglob("*.py"))
        found += [file.relative_to(tree / "src") for file in files]
    return found


def mutants_of(tree: Path, modules: list[Path], count: int, rng: random.Random) -> list[Mutant]:
    """Mutants of these modules: as many as were asked for, more of them where there is more to change."""
    sources = {module: (tree / "src" / module).read_bytes() for module in modules}
    every = [Mutant(module, site) for module in modules for site in drawn(sources[module], rng, count)]
    return sorted(rng.sample(every, min(count, len(every))))


def survives(mutant: Mutant, nearest: Nearest, copy: Copy, rng: random.Random) -> str:
    """How a mutant survived; nothing if a test noticed."""
    module, site = mutant
    tests = nearest(module, site.function, rng)
    if not tests:
        return "entered by no test"
    source = site.apply((copy.tree / "src" / module).read_bytes())
    tried, left = 0, tests
    with copy.changed(module, source):
        for seconds in ROUNDS:
            taken = within(left, seconds)
            if taken and not copy.passes([test.name for test in taken], 5 * seconds + PATIENCE):
                return ""
            tried += len(taken)
            left = [test for test in left if test not in taken]
            # The quickest tests are the simplest: the next ones are any.
            rng.shuffle(left)
    return f"survived {tried} of {len(tests)} tests"


def shown(mutant: Mutant, how: str, source: bytes) -> str:
    """A survivor as a person wants to see it."""
    site = mutant.site
    before = source[site.start : site.end].decode()
    return f"{mutant}: {how}\n    - {before}\n    + {site.text.decode()}"


def main() -> int:
    """Draw mutants, try them, print those that nobody noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--modules", nargs="+", required=True, help="folders or modules below a package of src")
    parser.add_argument("--mutants", type=int, default=200, help="how many, spread evenly over what was named")
    parser.add_argument("--seed", type=int, default=None, help="what is drawn; a fresh one is printed")
    parser.add_argument("--tree", type=Path, default=ROOT, help="a checkout of another commit, to be compared")
    parser.add_argument("--records", type=Path, default=None, help="a folder to keep what tests enter between runs")
    parser.add_argument("--processes", type=int, default=1, help="that find out which test enters what")
    given = parser.parse_args()
    seed = secrets.randbelow(1 << 32) if given.seed is None else given.seed
    began = time.monotonic()
    print(f"holdfast seed: {seed}", flush=True)
    named = {name: modules_of(given.tree, name) for name in given.modules}
    if unknown := [name for name, modules in named.items() if not modules]:
        parser.error(f"there is no module {', '.join(unknown)}")
    copy = Copy(given.tree.resolve(), seed)
    try:
        files = candidates(copy.tree, {module for modules in named.values() for module in modules})
        records = Records(given.records or copy.home / "records", copy.tree, seed)
        missing = records.missing(files)
        records.forget(missing)
        if missing:
            print(f"{len(missing)} files: {copy.record(missing, records.folder, given.processes)}", flush=True)
        records.add(missing)
        nearest = Nearest(records.tests_of(files), copy.tree)
        survivors = 0
        for name, modules in named.items():
            rng = random.Random(f"{seed}:{name}")
            mutants = mutants_of(copy.tree, modules, given.mutants // len(named), rng)
            alive = 0
            for number, mutant in enumerate(mutants):
                if how := survives(mutant, nearest, copy, random.Random(f"{seed}:{name}:{number}")):
                    alive += 1
                    print(shown(mutant, how, (copy.tree / "src" / mutant.module).read_bytes()), flush=True)
            survivors += alive
            print(f"{name}: {len(mutants)} mutants, {len(mutants) - alive} noticed", flush=True)
        print(f"{survivors} survivors in {time.monotonic() - began:.0f} s")
    finally:
        copy.close()
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
