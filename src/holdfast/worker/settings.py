"""How a worker behaves."""

from __future__ import annotations

import msgspec

from holdfast.errors import SettingsError

MOST_CONCURRENT = 100_000
LONGEST = 365 * 86400.0
LEAST = {"lease": 0.1, "recovery_interval": 0.001, "timeout_grace": 0, "stop_grace": 0, "check_interval": 0}
STALL_CHOICES = ("automatic", "approval")


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker behaves; all times in seconds."""

    concurrency: int = 32
    lease: float = 30.0
    recovery_interval: float = 5.0
    timeout_grace: float = 5.0
    stop_grace: float = 25.0
    check_interval: float = 60.0
    """How often the guard looks for broken invariants and stalls; 0 turns it off."""
    stall: str = "automatic"
    """Stalled jobs are recovered (`automatic`), or only reported, for an operator to decide (`approval`)."""

    def __post_init__(self) -> None:
        whole = isinstance(self.concurrency, int) and not isinstance(self.concurrency, bool)
        if not whole or not 1 <= self.concurrency <= MOST_CONCURRENT:
            raise SettingsError(
                f"concurrency cannot be {self.concurrency!r}", hint=f"a whole number from 1 to {MOST_CONCURRENT:,}"
            )
        if self.stall not in STALL_CHOICES:
            raise SettingsError(f"stall cannot be {self.stall!r}", hint=" or ".join(STALL_CHOICES))
        for name, least in LEAST.items():
            value = getattr(self, name)
            # Written so that "not a number", which compares false with everything, is refused too.
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= LONGEST:
                raise SettingsError(f"{name} cannot be {value!r}", hint=f"seconds, from {least:g} to {LONGEST:,.0f}")
