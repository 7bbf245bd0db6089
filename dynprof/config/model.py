"""The config model: it defines each key with its type, default and description.

Keys inside other keys are in :mod:`dynprof.config.sections`. No other place defines a key.

The JSON Schema, the template, the table in the docs and the messages are generated from this model.
The first group of keys, with their order, spelling and defaults, comes from the Ascend PyTorch
Profiler's ``profiler_config.json``. Keys of its newer versions are accepted as well.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, JsonValue, model_validator

from dynprof.config.sections import (
    NO_TENSORS,
    PATH_PATTERN,
    SAME,
    AgreementConfig,
    Effect,
    Every,
    ExperimentalConfig,
    Limits,
    NoEffect,
    Section,
    StorageConfig,
    WatchConfig,
)
from dynprof.errors import Problem
from dynprof.runtime.destination import is_url, why_no_destination, why_too_deep
from dynprof.runtime.layout import SCHEMA_NAME
from dynprof.runtime.plural import listed_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable

CHOSEN = ("one per host", "slowest", "median")
"""Criteria that only ranks that agree can evaluate."""
_EVERY = re.compile(r"every ([0-9]+)(?:st|nd|rd|th)")
_ALL = ((0, 1 << 62),)
_RANKS = (
    "([0-9]{1,7}( *- *[0-9]{1,7})?|every [1-9][0-9]{0,6}(st|nd|rd|th)|one per host|slowest|median)"
)
RANKS_PATTERN = f"^(all|{_RANKS}(( *, *| and ){_RANKS})*)$"
Activity = Literal["CPU", "CUDA", "XPU", "NPU", "cpu", "cuda", "xpu", "npu"]
BackendName = Literal["auto", "torch", "npu", "python"]
RankNumber = Annotated[int, Field(ge=0, le=9_999_999)]
_RANKS_EXAMPLES: list[Any] = ["all", "0-3,8", "every 64th", *CHOSEN]
MULTIPLE = "next multiple of "
MAX_STEPS = 2**53 - 1
"""The largest step number that every JSON reader represents exactly."""
_ANALYSIS = "in a separate process, into `analysis/`"


class BrokenRules(ValueError):  # noqa: N818 - pydantic shows it as part of its own error
    """Carries config problems through pydantic's validation."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("; ".join(map(str, problems)))


class ProfilerConfig(Section):
    """What to record. Save this file while the job runs to record the next steps."""

    schema_: Annotated[
        str | None,
        Field(
            alias="$schema", max_length=4096, description="For editors: path of the JSON Schema."
        ),
        SAME,
    ] = None
    activities: Annotated[
        list[Activity],
        Field(
            min_length=1,
            max_length=16,
            description="What to record: CPU (the host), and CUDA, XPU or NPU (the device). Left "
            "out, or as in the template: everything that the machine has and the process uses.",
        ),
        SAME,
    ] = ["CPU", "NPU"]
    prof_dir: Annotated[
        str,
        Field(
            pattern=PATH_PATTERN,
            max_length=4096,
            examples=["./", "captures", "s3://bucket/captures"],
            description="Where captures go: a URL, or a directory relative to the one that init() "
            "watches.",
        ),
        SAME,
    ] = "./"
    analyse: Annotated[
        bool,
        Field(description="Write tables from the trace after saving."),
        Effect(
            torch=_ANALYSIS,
            python=_ANALYSIS,
            marks=_ANALYSIS,
            npu=NoEffect("use torch_npu's own analyse() on a machine with its toolkit"),
        ),
    ] = False
    record_shapes: Annotated[
        bool,
        Field(description="Record the shapes and types of operator inputs."),
        Effect(torch="record_shapes", python=NoEffect(NO_TENSORS)),
    ] = False
    profile_memory: Annotated[
        bool,
        Field(description="Record allocations and releases of tensor memory."),
        Effect(
            torch="profile_memory; only the thread that opens the window is recorded",
            python=NoEffect(NO_TENSORS),
        ),
    ] = False
    with_stack: Annotated[
        bool,
        Field(description="Record the Python call stack of operators."),
        Effect(torch="with_stack", python="always on: a Python trace consists of call stacks"),
    ] = False
    with_flops: Annotated[
        bool,
        Field(description="Estimate floating point operations of matrix products."),
        Effect(torch="with_flops", python=NoEffect(NO_TENSORS)),
    ] = False
    with_modules: Annotated[
        bool,
        Field(description="Record the module hierarchy of operators."),
        Effect(
            torch="with_modules; torch supports it for TorchScript models only",
            python=NoEffect(NO_TENSORS),
        ),
    ] = False
    active: Annotated[
        int, Field(ge=1, le=MAX_STEPS, description="Number of whole steps to record."), SAME
    ] = 1
    experimental_config: Annotated[
        ExperimentalConfig, Field(description="Settings of individual profilers."), SAME
    ] = ExperimentalConfig()
    warmup: Annotated[
        int,
        Field(
            ge=0,
            le=MAX_STEPS,
            description="Number of steps that run with the profiler on before the first recorded "
            "step. They are not kept.",
        ),
        SAME,
    ] = 0
    start_step: Annotated[
        Annotated[int, Field(ge=-1, le=MAX_STEPS)]
        | Annotated[
            str,
            Field(pattern=f"^{MULTIPLE}[1-9][0-9]{{0,14}}$", examples=[f"{MULTIPLE}100"]),
        ],
        Field(
            description="Step at which the window opens; its warm-up comes first. 0 or -1: the "
            f'next step. "{MULTIPLE}100": the next step that 100 divides, so that ranks that '
            "cannot agree open at the same step.",
            examples=[0, 5000, f"{MULTIPLE}100"],
        ),
        SAME,
    ] = 0
    backend: Annotated[
        BackendName,
        Field(
            description="Profiler that records: npu (torch_npu), torch (torch.profiler), python "
            "(VizTracer), or auto (the first of these that the job has loaded)."
        ),
        SAME,
    ] = "auto"
    ranks: Annotated[
        Annotated[str, Field(pattern=RANKS_PATTERN, max_length=65_536, examples=_RANKS_EXAMPLES)]
        | Annotated[list[RankNumber], Field(min_length=1)]
        | None,
        Field(
            description='Ranks that record: "all", numbers and intervals such as "0-3,8", "every '
            '64th", or a list. If ranks agree on windows, also "one per host", and "slowest" and '
            '"median" by step time.',
            examples=["all", "0-3,8", "every 64th", "one per host", "slowest and median", [0, 8]],
        ),
        SAME,
    ] = None
    is_rank: Annotated[
        bool, Field(description="Older form of ranks: record only on the ranks of rank_list."), SAME
    ] = False
    rank_list: Annotated[
        list[RankNumber] | None, Field(description="The ranks for is_rank."), SAME
    ] = []
    cancel: Annotated[
        bool,
        Field(
            description="Close the open window, remove the waiting request, and request nothing. A "
            "save cancels if it sets this key, or if it keeps the key and changes nothing. A save "
            "that keeps the key and changes another setting is a request. Each rank compares with "
            "its last reading of the file; the first is the one at the start of its job. The "
            "script's own `start()` ignores this key."
        ),
        SAME,
    ] = False
    every: Annotated[
        Every | None,
        Field(
            description="Record a baseline now, and again after each interval, until a cancel. "
            "Baselines continue after another request, and when the job starts again.",
            examples=[None, {"minutes": 30}],
        ),
        SAME,
    ] = None
    keep: Annotated[
        int,
        Field(
            ge=1,
            le=10_000,
            description="Number of baselines that stay; older ones are removed. Other captures "
            "always stay.",
        ),
        SAME,
    ] = 20
    limits: Annotated[Limits, Field(description="When to close early, or not to open."), SAME] = (
        Limits()
    )
    agreement: Annotated[
        AgreementConfig,
        Field(description="How the ranks of a process group agree on a window."),
        SAME,
    ] = AgreementConfig()
    storage: Annotated[
        StorageConfig,
        Field(description="How captures reach prof_dir, where other ranks write too."),
        SAME,
    ] = StorageConfig()
    watch: Annotated[
        WatchConfig,
        Field(description="The watch for slow steps: when a step is slow, and what follows."),
        SAME,
    ] = WatchConfig()
    metadata: Annotated[
        dict[str, JsonValue],
        Field(description="Your own values, stored in the trace and next to it."),
        SAME,
    ] = {}
    memory_snapshot: Annotated[
        bool,
        Field(
            description="Record the history of the device's memory during the window, for torch's "
            "memory viewer. Without a device, record tensor memory and draw its timeline."
        ),
        Effect(
            torch="a pickled snapshot for each device whose allocator keeps a history; on the CPU "
            "profile_memory, and the timeline as HTML and JSON",
            python=NoEffect(NO_TENSORS),
            npu="a pickled snapshot, if this version of torch_npu keeps a history",
        ),
    ] = False
    async_mode: Annotated[
        bool,
        Field(description="Analyse in a separate process."),
        Effect(
            torch="always on",
            python="always on",
            marks="always on",
            npu=NoEffect("torch_npu's own analyse() is never run in the job"),
        ),
    ] = False

    @model_validator(mode="after")
    def _check_rules(self) -> ProfilerConfig:
        if broken := broken_rules(self):
            raise BrokenRules(broken)
        return self

    @property
    def experimental(self) -> ExperimentalConfig:
        """The experimental settings."""
        return self.experimental_config

    @property
    def watches_all(self) -> bool:
        """Whether to record everything that the machine has: no key, or the vendor's default.

        The default, CPU and NPU, is all that the vendor's machines have. On other machines it also
        means everything.
        """
        return bool(self.activities == type(self).model_fields["activities"].get_default())

    @property
    def records_memory(self) -> bool:
        """Whether allocations are recorded; each goes only to the profiler of its own thread."""
        return self.profile_memory or self.memory_snapshot

    @property
    def named_step(self) -> int | None:
        """The start step if it is a number; None for the next step or a multiple."""
        return self.start_step if isinstance(self.start_step, int) and self.start_step > 0 else None

    @property
    def multiple(self) -> int:
        """The number that must divide the start step; 1 for any step."""
        asked = self.start_step
        return int(asked.removeprefix(MULTIPLE)) if isinstance(asked, str) else 1

    @property
    def selected_ranks(self) -> RankSet:
        """The ranks that record."""
        if self.ranks is not None:
            return RankSet.parse(self.ranks)
        return RankSet.parse((self.rank_list or []) if self.is_rank else "all")

    def to_json(self) -> dict[str, Any]:
        """Return the config as JSON, spelled as in the file, without keys that were not set."""
        dumped: dict[str, Any] = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return dumped

    def requested_json(self) -> dict[str, Any]:
        """Return the config without ``watch``, which belongs to no request."""
        return {key: value for key, value in self.to_json().items() if key != "watch"}


def broken_rules(config: ProfilerConfig) -> list[Problem]:
    """Return the contradictions between the fields of ``config``."""
    problems = _misplaced(config)
    if config.ranks is not None and config.is_rank:
        text = "ranks are named twice, here and by is_rank with rank_list; keep one of the two."
        problems.append(Problem(text, "/ranks"))
    if isinstance(config.ranks, str):
        try:
            RankSet.parse(config.ranks)
        except ValueError as error:
            problems.append(Problem(f"the interval {error}.", "/ranks"))
    if config.is_rank and not config.rank_list:
        text = "is_rank is true, but this list names no rank; name some or set is_rank to false."
        problems.append(Problem(text, "/rank_list"))
    return problems + _misused_every(config)


def _misused_every(config: ProfilerConfig) -> list[Problem]:
    """Return the problems of a request that repeats."""
    if (every := config.every) is None:
        return []
    problems = []
    if (every.minutes is None) == (every.steps is None):
        text = 'the interval is given in minutes or in steps; write one, such as {"minutes": 30}.'
        problems.append(Problem(text, "/every"))
    if config.named_step:
        text = "a request that repeats has no start step; write 0, or remove every."
        problems.append(Problem(text, "/start_step"))
    if is_url(config.prof_dir):
        text = "baselines are compared and removed on a disk; write a directory, or remove every."
        problems.append(Problem(text, "/prof_dir"))
    return problems


def _misplaced(config: ProfilerConfig) -> list[Problem]:
    """Return the problems with the paths that ``config`` names."""
    problems = []
    scratch_dir = config.storage.scratch_dir or ""
    for path, pointer in (config.prof_dir, "/prof_dir"), (scratch_dir, "/storage/scratch_dir"):
        if path.startswith("~"):
            text = "the ~ of a shell is not expanded here; write the full path."
            problems.append(Problem(text, pointer))
        if why := why_too_deep(path):
            problems.append(Problem(f"this path is {why}; write a shorter one.", pointer))
    if is_url(scratch_dir):
        text = "captures are assembled on a local disk; write the path of a local directory."
        problems.append(Problem(text, "/storage/scratch_dir"))
    if why := why_no_destination(config.prof_dir):
        problems.append(Problem(f"{why}.", "/prof_dir"))
    return problems


@dataclass(frozen=True)
class RankSet:
    """A set of ranks as closed intervals, so that ``"0-99999"`` costs as little as ``"0"``.

    Attributes:
        intervals: The first and the last rank of each interval.
        every: Numbers; each adds the ranks that it divides.
        chosen: Criteria by which running ranks are chosen, of :data:`CHOSEN`.
    """

    intervals: tuple[tuple[int, int], ...] = ()
    every: tuple[int, ...] = ()
    chosen: tuple[str, ...] = ()

    @classmethod
    def parse(cls, ranks: str | Iterable[int]) -> RankSet:
        """Parse ranks as the config spells them.

        Raises:
            ValueError: An interval runs backwards.
        """
        if ranks == "all":
            return cls(_ALL)
        if not isinstance(ranks, str):
            return cls(tuple((rank, rank) for rank in sorted(set(ranks))))
        parts = [part.strip() for part in re.split(",| and ", ranks)]
        every = [int(found[1]) for part in parts if (found := _EVERY.fullmatch(part))]
        chosen = [part for part in parts if part in CHOSEN]
        spans = [part for part in parts if part not in CHOSEN and not _EVERY.fullmatch(part)]
        return cls(tuple(map(_interval, spans)), tuple(every), tuple(chosen))

    def __contains__(self, rank: int) -> bool:
        spans = any(low <= rank <= high for low, high in self.intervals)
        return spans or any(rank % number == 0 for number in self.every)

    def may_include(self, rank: int) -> bool:
        """Return whether the set has a rank, or may choose it."""
        return bool(self.chosen) or rank in self

    def beyond(self, size: int) -> RankSet:
        """Return the named ranks that a job of ``size`` ranks does not have; "all" names none."""
        spans = () if self.intervals == _ALL else self.intervals
        return RankSet(tuple((max(low, size), high) for low, high in spans if high >= size))

    def lacking(self, size: int) -> str:
        """Return which named ranks a job of ``size`` ranks does not have; empty if it has all."""
        beyond = self.beyond(size)
        if not beyond.intervals:
            return ""
        has = listed_ranks(range(size)) if size > 1 else "rank 0 only"
        noun = "rank" if str(beyond).isdecimal() else "ranks"
        return f"this job has {has}, no {noun} {beyond}"

    def position(self, rank: int, world_size: int) -> tuple[int, int]:
        """Return the index of a rank in the set and the size of the set.

        With criteria, or for a rank outside the set, both count all ranks of the job.
        """
        if self.chosen or rank not in self:
            return rank, world_size
        asked = [one for one in range(world_size) if one in self]
        return asked.index(rank), len(asked)

    def __str__(self) -> str:
        if self.intervals == _ALL:
            return "all"
        spans = [str(a) if a == b else f"{a}-{b}" for a, b in self.intervals]
        return ",".join([*spans, *map(_every, self.every), *self.chosen]) or "none"


def _interval(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    first, last = int(low), int(high or low)
    if last < first:
        raise ValueError(f'"{text.strip()}" runs backwards; write "{last}-{first}"')
    return first, last


def _every(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"every {number}{'th' if 10 < number % 100 < 14 else ending}"


_VENDORS_KEYS = (
    "activities",
    "prof_dir",
    "analyse",
    "async_mode",
    "record_shapes",
    "profile_memory",
    "with_stack",
    "with_flops",
    "with_modules",
    "active",
    "warmup",
    "start_step",
    "is_rank",
    "rank_list",
    "experimental_config",
)
"""The keys of torch_npu 2.14.0, in its order."""


@functools.cache
def config_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a config."""
    schema = ProfilerConfig.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        for member in section.get("properties", {}).values():
            member.pop("title", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dynprof profiler_config.json",
        **{key: value for key, value in schema.items() if key != "title"},
    }


def schema_text() -> str:
    """Return the text of the schema file, which is in ``schemas/`` and next to every config."""
    return json.dumps(config_schema(), indent=2) + "\n"


def template_text(activities: tuple[str, ...] = ()) -> str:
    """Return the file that ``init()`` creates: the vendor's keys and defaults, then dynprof's own.

    Args:
        activities: What to record, such as ``("CPU", "CUDA")``; empty for the vendor's default,
            which means everything that the machine has.
    """
    default = ProfilerConfig().model_dump(mode="json")
    template = {
        "$schema": f"./{SCHEMA_NAME}",
        **{key: default[key] for key in _VENDORS_KEYS},
        **({"activities": list(activities)} if activities else {}),
        "backend": default["backend"],
        "ranks": default["ranks"],
        "cancel": default["cancel"],
        "limits": default["limits"],
    }
    return json.dumps(template, indent=4) + "\n"
