"""Decide what to do for a config in this process; pure: no clock, no file, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dynprof.config.sections import Effect
from dynprof.errors import Problem
from dynprof.requests.capabilities import MARKS, fallbacks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pydantic import BaseModel

    from dynprof.config.model import ProfilerConfig
    from dynprof.requests.capabilities import Capabilities


_OF_OPERATORS = ("record_shapes", "with_stack", "with_flops", "with_modules")
"""Settings of the host's operators."""


@dataclass(frozen=True)
class ProcessState:
    """State of a process when an edit reaches it.

    Attributes:
        step: The number of the running step.
        rank: The rank of the process.
        capabilities: The backends, in the order of preference of ``auto``.
        free_disk_mb: Free megabytes (10^6 bytes) where the capture would go.
        prof_dir_problem: Why that place is not writable; empty if it is.
    """

    step: int
    rank: int
    capabilities: tuple[Capabilities, ...]
    free_disk_mb: float
    prof_dir_problem: str = ""


@dataclass(frozen=True)
class Script:
    """Options that a script can set through :mod:`dynprof.profiler`, and a file cannot.

    Attributes:
        in_place: Why the recording must close on its own thread; empty if it need not.
        experimental_config: Torch's own object of that name.
        observer: Object that is started and stopped with the recording.
        trace_id: Returns the id of the trace.
        metadata: The script's metadata for its capture; it can grow until the end.
        all_threads: Record all threads; any of them may start and stop.
    """

    in_place: str = ""
    experimental_config: Any = None
    observer: Any = None
    trace_id: Callable[[], str] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    all_threads: bool = False


@dataclass(frozen=True)
class Plan:
    """A window to open.

    Attributes:
        config: The requested config.
        backend: The backend that records.
        activities: What it records, without activities that are missing here.
        start_step: The step at which the window opens; None for the next step.
        remarks: Settings that were downgraded or have no effect.
        script: The script's options; None for an operator's request.
        fallbacks: Slower or reduced ways in which the window will be recorded, as known now. The
            recording's own ``fallbacks`` has those that applied.
    """

    config: ProfilerConfig
    backend: str
    activities: tuple[str, ...]
    start_step: int | None
    remarks: tuple[Problem, ...]
    script: Script | None = None
    fallbacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """Why no window will open.

    Attributes:
        problems: The reasons.
        selects_rank: False if the config is valid but does not select this rank.
    """

    problems: tuple[Problem, ...]
    selects_rank: bool = True


def plan(
    config: ProfilerConfig,
    state: ProcessState,
    script: Script | None = None,
    *,
    is_agreed: bool = False,
) -> Plan | Refusal:
    """Decide what a valid config means for this process.

    Args:
        config: The config.
        state: The state of the process.
        script: The script's options, if the script itself requests the window.
        is_agreed: Whether the ranks agreed on its start step.
    """
    if not_selected := _not_selected(config, state.rank):
        return not_selected
    capable = _choose(config, state.capabilities)
    if isinstance(capable, Problem):
        return Refusal((capable,))
    activities, dropped = _activities(config, capable, script)
    past = past_start(config, state.step, is_agreed=is_agreed)
    found = past, _prof_dir(config, state) or _disk(config, state)
    if problems := tuple(problem for problem in found if problem):
        return Refusal(problems)
    return Plan(
        config=config,
        backend=capable.backend,
        activities=activities,
        start_step=_start(config, state.step),
        remarks=(
            *dropped,
            *_without_effect(config, capable.backend),
            *_without_host(config, activities),
            *_without_operators(config, capable),
            *_without_device(config, activities, capable),
            *_served_in_part(config, script, capable),
        ),
        script=script,
        fallbacks=_fallbacks(config, activities, capable),
    )


def _fallbacks(
    config: ProfilerConfig, activities: tuple[str, ...], capable: Capabilities
) -> tuple[str, ...]:
    """Return remarks on the slower or reduced ways in which a window will be recorded."""
    inline = capable.inline if activities == ("CPU",) else capable.inline_on_device
    one_thread = "" if config.records_memory else capable.one_thread
    return fallbacks(inline, one_thread, capable.uncounted)


def _not_selected(config: ProfilerConfig, rank: int) -> Refusal | None:
    """Return a refusal if the config does not select this rank, or if the rank cannot tell."""
    asked = config.selected_ranks
    if asked.chosen:
        text = f'"{asked.chosen[0]}" is chosen among ranks that agree, and this rank does not; '
        return Refusal((Problem(f'{text}write numbers, or "all".', "/ranks"),))
    if rank in asked:
        return None
    text = f"rank {rank} is not selected, only {asked}."
    return Refusal((Problem(text, "/ranks" if config.ranks else "/rank_list"),), selects_rank=False)


def _start(config: ProfilerConfig, step: int) -> int | None:
    """Return the step at which the window opens; None for the next step."""
    if config.multiple > 1:
        return (step // config.multiple + 1) * config.multiple
    return config.named_step


def past_start(config: ProfilerConfig, step: int, *, is_agreed: bool = False) -> Problem | None:
    """Return the problem of a start step that has begun already; None if it has not.

    Args:
        config: The config.
        step: The number of the running step.
        is_agreed: Whether the ranks agreed on the start step.
    """
    if config.named_step is None or config.named_step > step:
        return None
    if is_agreed:
        text = f"step {config.named_step}, on which the ranks agreed, has begun here already: "
        return Problem(f"{text}this rank is at step {step}.")
    text = (
        f"step {config.named_step} has begun already, the job is at step {step}; "
        "write a later step, or 0 for the next one."
    )
    return Problem(text, "/start_step")


def _choose(
    config: ProfilerConfig, capabilities: tuple[Capabilities, ...]
) -> Capabilities | Problem:
    usable = [one for one in capabilities if not one.missing and one.backend != MARKS]
    if config.experimental.marks_only and not _on_npu(config, usable):
        for capable in capabilities:
            if capable.backend == MARKS:
                return capable
    if config.backend == "auto":
        return usable[0] if usable else _none_usable(capabilities)
    for capable in capabilities:
        if capable.backend == config.backend:
            if not capable.missing:
                return capable
            names = ", ".join(f'"{o.backend}"' for o in usable)
            text = (
                f'"{config.backend}" cannot serve here: {capable.missing}; write "auto" or {names}.'
            )
            return Problem(text, "/backend")
    return Problem(f'there is no backend "{config.backend}" here.', "/backend")


def _none_usable(capabilities: tuple[Capabilities, ...]) -> Problem:
    why = ", ".join(str(one) for one in capabilities if one.backend != MARKS)
    return Problem(f"no profiler can serve here: {why}.", "/backend")


def _on_npu(config: ProfilerConfig, usable: list[Capabilities]) -> bool:
    """Return whether an NPU's own profiler serves, which can also record only marks."""
    return config.backend in ("auto", "npu") and any(one.backend == "npu" for one in usable)


def _activities(
    config: ProfilerConfig, capable: Capabilities, script: Script | None
) -> tuple[tuple[str, ...], tuple[Problem, ...]]:
    named_by_script = script is not None and "activities" in config.model_fields_set
    if capable.backend == MARKS or (config.watches_all and not named_by_script):
        return capable.activities, ()
    asked = list(dict.fromkeys(name.upper() for name in config.activities))
    kept = tuple(name for name in asked if name in capable.activities)
    instead = "" if kept else f"; {', '.join(capable.activities)} is recorded instead"
    dropped = tuple(
        Problem(f"{name} is left out: {_lacks(capable)}{instead}.", "/activities")
        for name in asked
        if name not in kept
    )
    return kept or capable.activities, dropped


def _lacks(capable: Capabilities) -> str:
    return f"backend {capable.backend} on this machine has {', '.join(capable.activities)} only"


def _prof_dir(config: ProfilerConfig, state: ProcessState) -> Problem | None:
    if not (why := state.prof_dir_problem):
        return None
    return Problem(f"{why}; write another directory.", directory_pointer(config, why))


def directory_pointer(config: ProfilerConfig, why: str) -> str:
    """Return the JSON pointer of the directory that a reason is about."""
    scratch = config.storage.scratch_dir
    return "/storage/scratch_dir" if scratch and scratch.strip("./") in why else "/prof_dir"


def _disk(config: ProfilerConfig, state: ProcessState) -> Problem | None:
    least = config.limits.min_free_disk_mb
    if least is None or state.free_disk_mb >= least:
        return None
    text = (
        f"{state.free_disk_mb:,.0f} MB are free where the capture would go, and "
        f"limits.min_free_disk_mb is {least:,.0f}; make room, set another prof_dir or "
        "lower the limit."
    )
    return Problem(text, disk_pointer(config))


def disk_pointer(config: ProfilerConfig) -> str:
    """Return the JSON pointer to blame for a full disk: the limit if it was set, else prof_dir."""
    is_usual = config.limits.min_free_disk_mb in _defaults(config.limits, "min_free_disk_mb")
    return "/prof_dir" if is_usual else "/limits/min_free_disk_mb"


def _without_effect(config: ProfilerConfig, backend: str) -> Iterator[Problem]:
    """Yield the settings that differ from their default but have no effect on ``backend``."""
    sections = (
        (config, ""), (config.experimental, "/experimental_config"), (config.limits, "/limits"),
    )  # fmt: skip
    for section, pointer in sections:
        for name, effect in effects(type(section)).items():
            reason = effect.why_no_effect(backend) if name in section.model_fields_set else None
            if reason and getattr(section, name) not in _defaults(section, name):
                text = f"has no effect with backend {backend}: {reason}."
                yield Problem(text, f"{pointer}/{name}")

    asked = {part.upper() for part in config.experimental.host_sys or ()}
    if backend != "npu" and (unsampled := sorted(asked & {"OSRT", "NUMA"})):
        text = f"{' and '.join(unsampled)}: only an Ascend NPU's tools sample this."
        yield Problem(text, "/experimental_config/host_sys")


def _without_host(config: ProfilerConfig, activities: tuple[str, ...]) -> Iterator[Problem]:
    """Yield settings of the host's operators if those are not recorded."""
    for name in _OF_OPERATORS:
        if getattr(config, name) and "CPU" not in activities:
            text = "has no effect: it needs CPU among the activities."
            yield Problem(text, f"/{name}")


def _without_operators(config: ProfilerConfig, capable: Capabilities) -> Iterator[Problem]:
    """Yield that only marks are recorded, if the config explicitly names CPU.

    CPU with NPU is the vendor's default, also in its samples of Level_none.
    """
    named = {name.upper() for name in config.activities}
    if capable.backend == MARKS and "CPU" in named and not config.watches_all:
        text = "Level_none leaves out operators; Level0 with msprof_tx has both."
        yield Problem(text, "/experimental_config/profiler_level")


def _without_device(
    config: ProfilerConfig, activities: tuple[str, ...], capable: Capabilities
) -> Iterator[Problem]:
    """Yield a level whose additions need a device, if no device is recorded."""
    level = config.experimental.profiler_level
    if capable.backend == "torch" and activities == ("CPU",) and level in ("Level1", "Level2"):
        lacks_overloads = any(lack.value == level for lack in capable.lacks)
        overloads = level == "Level2" and not lacks_overloads
        more = "the overload names of operators and " if overloads else ""
        text = (
            f"{level} adds to Level0 on the CPU only {more}what collectives took "
            "(communication.json); the rest needs a device."
        )
        yield Problem(text, "/experimental_config/profiler_level")


def _served_in_part(
    config: ProfilerConfig, script: Script | None, capable: Capabilities
) -> Iterator[Problem]:
    """Yield requested settings that the installed profiler serves only in part."""
    sections = ((config, "/"), (config.experimental, "/experimental_config/"), (script, ""))
    for lack in capable.lacks:
        for section, pointer in sections:
            if getattr(section, lack.setting, None) == lack.value:
                yield Problem(lack.text, f"{pointer}{lack.setting}" if pointer else "")


def effects(section: type[BaseModel]) -> dict[str, Effect]:
    """Return the effect of each setting of a config section."""
    return {
        name: effect
        for name, field in section.model_fields.items()
        for effect in field.metadata
        if isinstance(effect, Effect)
    }


def _defaults(section: BaseModel, name: str) -> list[object]:
    default = type(section).model_fields[name].get_default()
    return [default, None, [default]]
