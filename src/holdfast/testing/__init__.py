"""Tools for testing flows, the engine's and yours: a clock you move, a worker without threads, a crash explorer."""

from holdfast.testing.explorer import (
    CrashExplorer,
    InlineWorker,
    Report,
    Scenario,
    Violation,
    VirtualClock,
    run_until_idle,
)

__all__ = ["CrashExplorer", "InlineWorker", "Report", "Scenario", "Violation", "VirtualClock", "run_until_idle"]
