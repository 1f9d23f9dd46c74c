"""A coverage-guided fuzzer of parser and rules: keeps the inputs that reach new lines, and mutates those.

    python -m tests.hostile.fuzz_parser --seconds 300 [--seed N] [--engine atheris]

It prints its seed first; the same seed draws the same inputs. An input that surprises is written to a file and raised.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import holdfast_images.archive
from tests.hostile.test_mutations import SEEDS, check_judgement, repaired
from tests.support.images.archives import compressed, padded

SOURCES = str(Path(holdfast_images.archive.__file__).parent)
TOKENS = [
    *(
        b"\0",
        b"\xff",
        b"\x80",
        b" ",
        b"/",
        b"..",
        b"../",
        b"/etc",
        b"-1",
        b"=",
        b"\n",
        b"30 path=",
        b".wh.",
        b".wh..wh..opq",
    ),
    *(b"x", b"g", b"L", b"K", b"S", b"1", b"2", b"5", b"ustar  \0", b"ustar\x0000", bytes(8), bytes(512)),
    *(b"7" * 11, b"\x80" + bytes(11), b"\xff" * 12, b"0000644\0", b"GNU.sparse.", b"SCHILY.xattr."),
]
LARGEST = 1 << 15


class Coverage:
    """Which pairs of consecutive lines of the archive package were run, since the beginning and in one run."""

    def __init__(self) -> None:
        self.seen: set[tuple[CodeType, int, int]] = set()
        self._fresh = False
        self._last = 0

    def run(self, act: Callable[[], None]) -> bool:
        """Run it; did it take a step that was never taken before?"""
        self._fresh, self._last = False, 0
        sys.settrace(self._call)
        try:
            act()
        finally:
            sys.settrace(None)
        return self._fresh

    def _call(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        return self._line if frame.f_code.co_filename.startswith(SOURCES) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        step = (frame.f_code, self._last, frame.f_lineno)
        if step not in self.seen:
            self.seen.add(step)
            self._fresh = True
        self._last = frame.f_lineno
        return self._line


def mutated(rng: random.Random, corpus: list[bytes]) -> bytes:
    """One of the corpus, with some of its bytes, fields or blocks changed, and mostly with right checksums."""
    content = bytearray(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at = rng.randrange(len(content) + 1)
        block = at // 512 * 512
        match rng.randrange(8):
            case 0 if content:
                content[at % len(content)] = rng.randrange(256)
            case 1:
                token = rng.choice(TOKENS)
                content[at : at + len(token)] = token
            case 2:
                # The fields of a header, where most is decided.
                field = rng.choice((0, 100, 108, 116, 124, 136, 156, 157, 257, 345, 386, 482, 483, 512))
                token = rng.choice(TOKENS)
                content[block + field : block + field + len(token)] = token
            case 3:
                del content[block : block + 512 * rng.randrange(1, 4)]
            case 4:
                other = rng.choice(corpus)
                start = rng.randrange(len(other) + 1) // 512 * 512
                content[block:block] = other[start : start + 512 * rng.randrange(1, 5)]
            case 5:
                del content[at : at + rng.randrange(1, 30)]
            case 6:
                content[at:at] = rng.choice(TOKENS)
            case _:
                content[block + 156 : block + 157] = rng.choice((b"0", b"1", b"2", b"5", b"x", b"g", b"L", b"K", b"S"))
    result = bytes(content[:LARGEST])
    if rng.random() < 0.8:
        result = repaired(bytearray(padded(result)))
    if rng.random() < 0.5:
        result += bytes(1024)
    return result if rng.random() < 0.95 else compressed(result, rng.choice(("gzip", "xz", "zstd")))


def fuzz(seed: int, seconds: float, *, runs: int | None = None) -> tuple[int, int, int]:
    """Fuzz for a time or a number of runs; how many runs, steps covered and inputs kept."""
    rng = random.Random(seed)
    coverage = Coverage()
    corpus = [content for content in SEEDS if len(content) <= LARGEST]
    for content in corpus:
        coverage.run(lambda content=content: check_judgement(content))  # type: ignore[misc]
    count = 0
    end = time.monotonic() + seconds
    while (runs is None or count < runs) and time.monotonic() < end:
        count += 1
        content = mutated(rng, corpus)
        try:
            if coverage.run(lambda content=content: check_judgement(content)):  # type: ignore[misc]
                corpus.append(content)
        except Exception:  # whatever it is, its input is kept, and it goes on
            found = Path(tempfile.gettempdir()) / f"fuzz-{hashlib.sha256(content).hexdigest()[:16]}.tar"
            found.write_bytes(content)
            print(f"seed {seed}, run {count}: {found}", file=sys.stderr)
            raise
    return count, len(coverage.seen), len(corpus)


def archive_functions() -> list[FunctionType]:
    """Every function and method of the archive package."""
    modules = [module for name, module in sys.modules.items() if name.startswith("holdfast_images.archive.")]
    members = [each for module in modules for each in vars(module).values()]
    members += [each for owner in members if isinstance(owner, type) for each in vars(owner).values()]
    functions = [getattr(each, "__func__", getattr(each, "fget", None)) or each for each in members]
    unique = {id(each): each for each in functions if isinstance(each, FunctionType)}
    return [each for each in unique.values() if each.__module__.startswith("holdfast_images.archive.")]


def fuzz_with_atheris(seed: int, seconds: int) -> None:
    """The same by atheris (libFuzzer), if it is installed; ends the process."""
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

    for function in archive_functions():
        atheris.instrument_func(function)
    corpus = Path(tempfile.mkdtemp(prefix="fuzz-corpus-"))
    for content in SEEDS:
        (corpus / hashlib.sha256(content).hexdigest()).write_bytes(content)

    def one(content: bytes) -> None:
        check_judgement(content)
        check_judgement(repaired(bytearray(padded(content))) + bytes(1024))

    options = [
        f"-max_total_time={seconds}",
        f"-seed={seed}",
        f"-max_len={LARGEST}",
        "-timeout=20",
        "-rss_limit_mb=1024",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--engine", choices=("own", "atheris"), default="own")
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    if chosen.engine == "atheris":
        fuzz_with_atheris(chosen.seed, chosen.seconds)
        return
    count, steps, kept = fuzz(chosen.seed, chosen.seconds)
    print(f"{count} runs, {steps} steps covered, {kept} inputs kept")


if __name__ == "__main__":
    main()
