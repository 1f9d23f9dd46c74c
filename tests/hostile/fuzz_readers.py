"""A differential fuzzer: what strict accepts, every other reader has to read, and unpack, in the same way.

    python -m tests.hostile.fuzz_readers --seconds 300 [--seed N] [--kinds tar,image,compression] [--place DIRECTORY]

Needs root, for a root directory to throw away. It prints its seed first; the same seed draws the same archives. An
archive about which readers differ is kept in a file, and it goes on; the end is 1 if there was one.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.hostile import readers
from tests.hostile.comparison import KINDS, Difference
from tests.support.images.throwaway_root import Send, inside, make_throwaway_root

TOLD_EVERY = 300.0


class Found(NamedTuple):
    """An archive that is not read in one way only."""

    which: str
    """By which it is drawn again."""
    difference: str
    content: bytes


def fuzz(
    seed: int,
    place: Path,
    *,
    seconds: float = 60,
    accepted: int | None = None,
    kinds: tuple[str, ...] = tuple(KINDS),
    on_found: Callable[[Found], None] = lambda found: None,
    on_counts: Callable[[Counter[str]], None] = lambda counts: None,
) -> tuple[Counter[str], list[Found]]:
    """Draw and compare for a time, or up to a number of accepted archives; what was counted, and what was found.

    `place` is a root to throw away.
    """
    readers.libarchive()  # while there is one to load
    counts: Counter[str] = Counter()
    found: list[Found] = []
    for message in inside(place, lambda send: _fuzz(send, seed, seconds, accepted, kinds)):
        if isinstance(message, Found):
            found.append(message)
            on_found(message)
        else:
            counts = message
            on_counts(counts)
    return counts, found


def _fuzz(send: Send, seed: int, seconds: float, accepted: int | None, kinds: tuple[str, ...]) -> None:
    counts: Counter[str] = Counter()
    begin = told = time.monotonic()
    number = 0
    while (now := time.monotonic()) < begin + seconds and (accepted is None or counts["accepted"] < accepted):
        kind = kinds[number % len(kinds)]
        which = f"{seed}:{kind}:{number}"
        number += 1
        content, compare = KINDS[kind](random.Random(which))
        counts.update(("tried", f"{kind} tried"))
        if compare is not None:
            counts.update(("accepted", f"{kind} accepted"))
            try:
                compare(content)
            except Difference as difference:
                counts["different"] += 1
                send(Found(which, str(difference), content))
        if now - told > TOLD_EVERY:
            told = now
            send(counts)
    send(counts)


def kept(found: Found) -> Path:
    """A file with this archive, for who looks into it."""
    path = Path(tempfile.gettempdir()) / f"readers-differ-{hashlib.sha256(found.content).hexdigest()[:16]}"
    path.write_bytes(found.content)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--place", type=Path, help="where to make the root to throw away")
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)

    def tell(found: Found) -> None:
        print(f"{kept(found)} {found.which}: {found.difference}", flush=True)

    def count(counts: Counter[str]) -> None:
        print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())), flush=True)

    with tempfile.TemporaryDirectory(dir=chosen.place, prefix="readers-") as place:
        kinds = tuple(chosen.kinds.split(","))
        make_throwaway_root(Path(place))
        _, found = fuzz(chosen.seed, Path(place), seconds=chosen.seconds, kinds=kinds, on_found=tell, on_counts=count)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
