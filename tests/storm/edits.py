"""Random configs of a storm's operator, with any setting that this machine supports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random

FLAGS = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules", "cancel")
LEVELS = ("Level_none", "Level0", "Level0", "Level1", "Level2")


def edit(chance: random.Random, step: int) -> dict[str, Any]:
    """Return a config, as a person might write it.

    Args:
        chance: The source of random numbers.
        step: The job's step, approximately.
    """
    return {
        "activities": ["CPU"],
        "backend": chance.choice(["auto", "auto", "torch", "torch", "python"]),
        "active": chance.randint(1, 12),
        "warmup": chance.choice([0, 0, 0, 2]),
        "start_step": _start_step(chance, step),
        "prof_dir": chance.choice(["./", "./", "captures"]),
        "analyse": chance.random() < 0.05,  # each starts another process
        "memory_snapshot": chance.random() < 0.1,
        "limits": _limits(chance),
        "experimental_config": _experimental(chance),
        **{name: chance.random() < 0.25 for name in FLAGS},
    }


def _start_step(chance: random.Random, step: int) -> int | str:
    """Return the next step in most cases, else a later one, and rarely a past one."""
    later = step + chance.randint(1, 60)
    multiple: int | str = f"next multiple of {chance.randint(1, 30)}"
    return chance.choice([0, 0, 0, -1, later, later, multiple, 1])


def _limits(chance: random.Random) -> dict[str, float | None]:
    """Return limits that rarely take effect."""
    return {
        "max_seconds": chance.choice([None, 3600, 3600, 0.02]),
        "max_memory_mb": chance.choice([None, 4096, 4096, 10]),
        "min_free_disk_mb": chance.choice([None, 0, 0, 1] * 5 + [1e12]),
    }


def _experimental(chance: random.Random) -> dict[str, Any]:
    return {
        "profiler_level": chance.choice(LEVELS),
        "gc_detect_threshold": chance.choice([None, 0]),
        "host_sys": chance.choice([[], ["CPU", "MEM"], ["CPU", "MEM", "DISK", "NETWORK"]]),
        "mstx": chance.random() < 0.3,
        "record_op_args": chance.random() < 0.1,
    }


def switched_on(asked: dict[str, Any]) -> list[str]:
    """Describe the settings that make a window larger."""
    flat = {**asked, **asked["experimental_config"], "active": 0, "warmup": 0}
    names = [name for name, value in flat.items() if value is True]
    return [*names, f"backend {asked['backend']}", str(flat["profiler_level"])]
