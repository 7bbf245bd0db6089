"""The config: every key with its type, default and meaning, documented here and nowhere else.

The JSON Schema, the template, the table in the docs and the messages are made from this model.
The first group of keys, their order, spelling and defaults are those of the Ascend PyTorch
Profiler's ``profiler_config.json``; what its newer versions read is accepted as well.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, model_validator

from dynprof.config.effects import (
    NO_TENSORS,
    PATH_PATTERN,
    RANKS_PATTERN,
    SAME,
    Effect,
    NoEffect,
    Section,
)
from dynprof.config.experimental import ExperimentalConfig
from dynprof.config.ranks import CHOSEN, RankSet
from dynprof.config.sections import AgreementConfig, Limits, StorageConfig
from dynprof.errors import Problem
from dynprof.runtime.destination import is_url, why_no_destination, why_too_deep

Activity = Literal["CPU", "CUDA", "XPU", "NPU", "cpu", "cuda", "xpu", "npu"]
BackendName = Literal["auto", "torch", "npu", "python"]
RankNumber = Annotated[int, Field(ge=0, le=9_999_999)]
_RANKS_EXAMPLES: list[Any] = ["all", "0-3,8", "every 64th", *CHOSEN]
MULTIPLE = "next multiple of "
MAX_STEPS = 2**53 - 1
"""The largest step number that every JSON reader keeps exact."""


_ANALYSIS = "in a process beside the training, into `analysis/`"


class BrokenRules(ValueError):  # noqa: N818 - pydantic shows it as part of its own error
    """Carries the problems through pydantic."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("; ".join(map(str, problems)))


class ProfilerConfig(Section):
    """What to record. Save this file while the job runs, and the next steps are captured."""

    schema_: Annotated[
        str | None,
        Field(alias="$schema", max_length=4096, description="For editors: where the schema lies."),
        SAME,
    ] = None
    activities: Annotated[
        list[Activity],
        Field(
            min_length=1,
            max_length=16,
            description="What to watch: CPU (the host), CUDA, XPU, NPU (that device). Left out, or "
            "as the template has it: all that the machine has and the process uses.",
        ),
        SAME,
    ] = ["CPU", "NPU"]
    prof_dir: Annotated[
        str,
        Field(
            pattern=PATH_PATTERN,
            max_length=4096,
            examples=["./", "captures", "s3://bucket/captures"],
            description="Where captures go: a directory, relative to the one that init() watches, "
            "or a URL.",
        ),
        SAME,
    ] = "./"
    analyse: Annotated[
        bool,
        Field(description="Make tables from the trace once it is saved."),
        Effect(
            torch=_ANALYSIS,
            python=_ANALYSIS,
            marks=_ANALYSIS,
            npu=NoEffect("torch_npu's own analyse() makes them, on a machine with its toolkit"),
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
            torch="profile_memory, of the thread that opens the window; only that one is recorded",
            python=NoEffect(NO_TENSORS),
        ),
    ] = False
    with_stack: Annotated[
        bool,
        Field(description="Record the Python call stack of operators."),
        Effect(torch="with_stack", python="always on: a Python trace is made of call stacks"),
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
            torch="with_modules; torch has it for TorchScript models only",
            python=NoEffect(NO_TENSORS),
        ),
    ] = False
    active: Annotated[
        int, Field(ge=1, le=MAX_STEPS, description="How many whole steps to record."), SAME
    ] = 1
    experimental_config: Annotated[
        ExperimentalConfig, Field(description="Settings of particular profilers."), SAME
    ] = ExperimentalConfig()
    warmup: Annotated[
        int,
        Field(
            ge=0,
            le=MAX_STEPS,
            description="Steps to run with the profiler on, but not kept, before the first "
            "recorded one.",
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
            description="The step at which the window opens (its warm-up, if any, comes first); "
            f'0 or -1: the next step; "{MULTIPLE}100": the next one that 100 divides, where ranks '
            "that cannot agree shall meet.",
            examples=[0, 5000, f"{MULTIPLE}100"],
        ),
        SAME,
    ] = 0
    backend: Annotated[
        BackendName,
        Field(
            description="Which profiler records: npu (torch_npu), torch (torch.profiler), python "
            "(VizTracer), or auto: the first of these that the job has loaded."
        ),
        SAME,
    ] = "auto"
    ranks: Annotated[
        Annotated[str, Field(pattern=RANKS_PATTERN, max_length=65_536, examples=_RANKS_EXAMPLES)]
        | Annotated[list[RankNumber], Field(min_length=1)]
        | None,
        Field(
            description='Which ranks record: "all", numbers and intervals such as "0-3,8", "every '
            '64th", or a list; where ranks agree also "one per host", "slowest" and "median" by '
            "the time of their steps.",
            examples=["all", "0-3,8", "every 64th", "one per host", "slowest and median", [0, 8]],
        ),
        SAME,
    ] = None
    is_rank: Annotated[
        bool, Field(description="The older way: record only on the ranks of rank_list."), SAME
    ] = False
    rank_list: Annotated[
        list[RankNumber] | None, Field(description="The ranks of is_rank."), SAME
    ] = []
    cancel: Annotated[
        bool,
        Field(
            description="Close the open window, disarm the waiting one, and ask for nothing. Meant "
            "by the save that sets it, and by one that has it and changes nothing; a save that "
            "leaves it there and changes another setting is a request. Each rank compares with "
            "what it read last, at first with what was there when its job started. The script's "
            "own `start()` does not look at it."
        ),
        SAME,
    ] = False
    limits: Annotated[Limits, Field(description="When to close early or not to open."), SAME] = (
        Limits()
    )
    agreement: Annotated[
        AgreementConfig,
        Field(description="How the ranks of a process group agree on a window."),
        SAME,
    ] = AgreementConfig()
    storage: Annotated[
        StorageConfig,
        Field(description="How captures get to prof_dir, where other ranks write as well."),
        SAME,
    ] = StorageConfig()
    metadata: Annotated[
        dict[str, JsonValue],
        Field(description="Anything you want to find again beside and inside the trace."),
        SAME,
    ] = {}
    memory_snapshot: Annotated[
        bool,
        Field(
            description="Keep the history of the device's memory over the window, for torch's "
            "memory viewer; without a device, record tensor memory and draw its timeline."
        ),
        Effect(
            torch="a pickled snapshot for each device whose allocator keeps a history; CPU: "
            "profile_memory, and the timeline as html and json",
            python=NoEffect(NO_TENSORS),
            npu="a pickled snapshot, where this version of torch_npu keeps a history",
        ),
    ] = False
    async_mode: Annotated[
        bool,
        Field(description="Analyse in a process of its own."),
        Effect(
            torch="always so",
            python="always so",
            marks="always so",
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
        """Whether the file asks for all that the machine has, by the vendor's default or no key.

        The default, CPU and NPU, is all that the vendor's machines have; it means so on others.
        """
        return bool(self.activities == type(self).model_fields["activities"].get_default())

    @property
    def records_memory(self) -> bool:
        """Whether allocations are recorded: a thread's go to the profiler of that thread only."""
        return self.profile_memory or self.memory_snapshot

    @property
    def named_step(self) -> int | None:
        """The step that is named; None where the next one will do, or a multiple."""
        return self.start_step if isinstance(self.start_step, int) and self.start_step > 0 else None

    @property
    def multiple(self) -> int:
        """What is to divide the step at which the window opens."""
        asked = self.start_step
        return int(asked.removeprefix(MULTIPLE)) if isinstance(asked, str) else 1

    @property
    def selected_ranks(self) -> RankSet:
        """The ranks that shall record."""
        if self.ranks is not None:
            return RankSet.parse(self.ranks)
        return RankSet.parse((self.rank_list or []) if self.is_rank else "all")

    def to_json(self) -> dict[str, Any]:
        """Return the config as JSON, spelled as in a file, without what was not set."""
        dumped: dict[str, Any] = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return dumped


def broken_rules(config: ProfilerConfig) -> list[Problem]:
    """Return what makes the fields of ``config`` contradict each other."""
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
    return problems


def _misplaced(config: ProfilerConfig) -> list[Problem]:
    """Return what is wrong with the places that ``config`` names."""
    problems = []
    scratch_dir = config.storage.scratch_dir or ""
    for path, pointer in (config.prof_dir, "/prof_dir"), (scratch_dir, "/storage/scratch_dir"):
        if path.startswith("~"):
            text = "the ~ of a shell means nothing here; write the whole path."
            problems.append(Problem(text, pointer))
        if why := why_too_deep(path):
            problems.append(Problem(f"this path is {why}; write a shorter one.", pointer))
    if is_url(scratch_dir):
        text = "captures are put together on the machine's own disk; name a directory of it."
        problems.append(Problem(text, "/storage/scratch_dir"))
    if why := why_no_destination(config.prof_dir):
        problems.append(Problem(f"{why}.", "/prof_dir"))
    return problems
