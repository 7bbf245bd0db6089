"""The nested sections of the config, and the effect of a setting on each backend.

Each key of the model carries its :class:`Effect` as metadata.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from dynprof.runtime.plural import counted

PATH_PATTERN = r"""^[^\x00-\x1f\x7f"\\]+$"""
"""Paths without quotes and backslashes: torch writes a path to the trace without escapes."""


class Section(BaseModel):
    """Base of all sections: frozen, strict, and without unknown keys."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )


class NoEffect(str):
    """The reason why a setting has no effect on a backend."""

    __slots__ = ()


@dataclass(frozen=True)
class Effect:
    """The effect of a setting on each backend.

    Attributes:
        torch: What ``torch.profiler`` does with it, or a :class:`NoEffect`.
        python: What VizTracer does with it, or a :class:`NoEffect`.
        npu: What ``torch_npu.profiler`` does with it, or a :class:`NoEffect`.
        marks: What a recording of only marks does with it, or a :class:`NoEffect`.
    """

    torch: str
    python: str
    npu: str = "passed to torch_npu"
    marks: str = NoEffect("Level_none records only marks")

    def why_no_effect(self, backend: str) -> str | None:
        """Return why the setting has no effect on ``backend``; None if it has one."""
        text = getattr(self, backend, None)
        return str(text) if isinstance(text, NoEffect) else None


SAME = Effect(torch="yes", python="yes", npu="yes", marks="yes")
"""A setting that means the same on every backend."""

_COUNTED = "only an Ascend NPU measures this while it records"
COUNTERS = Effect(
    torch=NoEffect(f"{_COUNTED}; on CUDA, Nsight Compute does it by running each kernel again"),
    python=NoEffect(_COUNTED),
)
"""A setting for hardware counters of the device's cores."""

ASCEND_ONLY = Effect(
    torch=NoEffect("only an Ascend NPU measures this"),
    python=NoEffect("only an Ascend NPU measures this"),
)
NO_TENSORS = "a Python trace has no tensors"

ExportType = Literal["text", "db"]
ProfilerLevel = Literal["Level_none", "Level0", "Level1", "Level2"]
AicMetrics = Literal[
    "AiCoreNone",
    "PipeUtilization",
    "ArithmeticUtilization",
    "Memory",
    "MemoryL0",
    "MemoryUB",
    "ResourceConflictRatio",
    "L2Cache",
    "MemoryAccess",
]
HostSystem = Literal[
    "cpu", "mem", "disk", "network", "osrt", "numa",
    "CPU", "MEM", "DISK", "NETWORK", "OSRT", "NUMA",
]  # fmt: skip


_COLLECTIONS = "a track of these collections"
_MARKS = "marks of dynprof.mstx and torch.cuda.nvtx"
_ALL_MARKS = "marks of dynprof.mstx and torch.cuda.nvtx, and ranges of record_function"
_HOST = (
    "counter tracks with ten samples per second: CPU load, MEM used, DISK and NETWORK in MB/s; "
    "OSRT and NUMA are not sampled"
)


class ExperimentalConfig(Section):
    """Additional settings, mostly those of the Ascend profiler."""

    profiler_level: Annotated[
        ProfilerLevel,
        Field(
            description="Level of detail: Level_none (only marks and steps), Level0 (operators and "
            "kernels), Level1 and Level2 (more runtime events)."
        ),
        Effect(
            torch="Level_none records only marks; Level1 adds CUDA synchronisation events; "
            "Level2 adds the overload names of operators",
            python=NoEffect("a Python trace has one level, and Level_none with only marks"),
            marks="yes",
        ),
    ] = "Level0"
    aic_metrics: Annotated[
        AicMetrics,
        Field(description="AI core metrics to sample. Needs Level1 or Level2."),
        COUNTERS,
    ] = "AiCoreNone"
    l2_cache: Annotated[bool, Field(description="Collect L2 cache hit rates."), COUNTERS] = False
    op_attr: Annotated[
        bool,
        Field(description="Collect attributes of aclnn operators. Needs export_type db."),
        ASCEND_ONLY,
    ] = False
    gc_detect_threshold: Annotated[
        float | None,
        Field(ge=0, description="Record garbage collections longer than this, in ms. null: none."),
        Effect(torch=_COLLECTIONS, python=_COLLECTIONS, marks=_COLLECTIONS),
    ] = None
    data_simplification: Annotated[
        bool | None,
        Field(description="Delete intermediate data after the analysis."),
        Effect(
            torch=NoEffect("a capture has no intermediate data"),
            python=NoEffect("a capture has no intermediate data"),
        ),
    ] = True
    record_op_args: Annotated[
        bool,
        Field(description="Write operator arguments to a separate file."),
        Effect(
            torch="torch's execution trace, `info/rank_<r>.execution_trace.json`",
            python=NoEffect(NO_TENSORS),
        ),
    ] = False
    export_type: Annotated[
        ExportType | Annotated[list[ExportType], Field(min_length=1)],
        Field(
            description="Format of the tables that the analysis writes: text (JSON and CSV), "
            "db (SQLite), or a list of both.",
            examples=["text", ["text", "db"]],
        ),
        Effect(torch="yes", python="yes", marks="yes"),
    ] = "text"
    msprof_tx: Annotated[
        bool,
        Field(description="Older name of mstx."),
        Effect(torch="as mstx", python="as mstx", marks="as mstx"),
    ] = False
    mstx: Annotated[
        bool,
        Field(description="Collect the marks and ranges that the script sets."),
        Effect(
            torch=_MARKS,
            python=_ALL_MARKS,
            npu="passed to torch_npu, with marks of dynprof.mstx and torch.cuda.nvtx",
            marks=_ALL_MARKS,
        ),
    ] = False
    host_sys: Annotated[
        list[HostSystem] | None,
        Field(description="Host resources to sample while recording."),
        Effect(torch=_HOST, python=_HOST, marks=_HOST),
    ] = []
    mstx_domain_include: Annotated[
        list[str] | None,
        Field(description="Keep only the marks of these domains."),
        Effect(torch="yes", python="yes", marks="yes"),
    ] = []
    mstx_domain_exclude: Annotated[
        list[str] | None,
        Field(description="Drop the marks of these domains."),
        Effect(torch="yes", python="yes", marks="yes"),
    ] = []
    sys_io: Annotated[bool, Field(description="Collect NIC and RoCE data."), ASCEND_ONLY] = False
    sys_interconnection: Annotated[
        bool, Field(description="Collect HCCS and PCIe data."), ASCEND_ONLY
    ] = False

    @property
    def marks(self) -> bool:
        """Whether the script's own marks are recorded."""
        return self.mstx or self.msprof_tx or self.marks_only

    @property
    def marks_only(self) -> bool:
        """Whether only marks are recorded, which the vendor calls ``Level_none``."""
        return self.profiler_level == "Level_none"

    @property
    def export_types(self) -> frozenset[str]:
        """The requested table formats."""
        asked = [self.export_type] if isinstance(self.export_type, str) else self.export_type
        return frozenset(asked)


class Every(Section):
    """How often a baseline is recorded: give minutes or steps."""

    minutes: Annotated[
        float | None,
        Field(gt=0, le=525_600, description="Minutes between two baselines.", examples=[30]),
        SAME,
    ] = None
    steps: Annotated[
        int | None,
        Field(
            ge=1,
            le=2**53 - 1,
            description="Steps between two baselines; checked every 2 s.",
            examples=[5000],
        ),
        SAME,
    ] = None

    def __str__(self) -> str:
        if self.minutes is None:
            return f"every {counted(self.steps or 1, 'step')}"
        return f"every {self.minutes:g} min" if self.minutes >= 1 else f"every {self.seconds:g} s"

    @property
    def seconds(self) -> float:
        """The interval in seconds; 0 if it is in steps."""
        return round((self.minutes or 0) * 60, 6)


class AgreementConfig(Section):
    """Rules by which the ranks of a process group agree on a window."""

    patience_s: Annotated[
        float,
        Field(
            gt=0,
            le=86_400,
            description="Longest delay of the start, in seconds, for a rank that is not ready. "
            "Such a rank is busy with its previous window or does not answer. If the request names "
            "no start step, a rank that ends no step while others do also counts. After the "
            "delay, the rank is left out and named.",
        ),
        SAME,
    ] = 30
    unable: Annotated[
        Literal["refuse", "downgrade"],
        Field(
            description="What to do if one rank cannot serve the request, or serves less than the "
            'others. "refuse": no rank records. "downgrade": all ranks record what they have in '
            "common."
        ),
        SAME,
    ] = "refuse"


class StorageConfig(Section):
    """How captures reach ``prof_dir``, where other ranks write too."""

    scratch_dir: Annotated[
        Annotated[str, Field(pattern=PATH_PATTERN, max_length=4096)] | None,
        Field(
            description="Local directory in which each capture is assembled before it moves to "
            "prof_dir. It is relative to the directory that init() watches. If null: prof_dir "
            "itself, or `outgoing` in the watched directory if prof_dir is a URL.",
            examples=[None, "/local/scratch"],
        ),
        SAME,
    ] = None
    spread_s: Annotated[
        float | None,
        Field(
            ge=0,
            le=86_400,
            description="Seconds over which the ranks start to write into prof_dir, one after the "
            "other. If null and prof_dir is a URL or on a network file system: 20 ms between two "
            "ranks, up to 60 s in total.",
        ),
        SAME,
    ] = None
    retry_s: Annotated[
        float,
        Field(
            ge=0,
            le=86_400,
            description="Seconds to retry if a capture cannot be moved to prof_dir. After that it "
            "stays where it was assembled, and the log names the place.",
        ),
        SAME,
    ] = 600


class Limits(Section):
    """What a window may cost before it closes early; null switches a limit off (max_events: 0)."""

    max_seconds: Annotated[
        float | None,
        Field(
            gt=0,
            le=1e9,
            description="Close at the first step end after this many seconds. If all threads are "
            "recorded and no step has ended for a minute, close without a step end.",
        ),
        SAME,
    ] = 3600
    max_memory_mb: Annotated[
        float | None,
        Field(
            gt=0,
            le=1e9,
            description="Close at the first step end after this process has grown by this many MB "
            "(10^6 bytes) of resident memory since the window opened. Also close at the last step "
            "end before saving would take more than half of the free memory. Free memory is that "
            "of the machine, the container or the process's own limits. Checked every 50 ms or "
            "more often, or every 250 ms if only marks are recorded.",
        ),
        SAME,
    ] = 4096
    max_events: Annotated[
        int,
        Field(
            ge=0,
            le=10**12,
            description="Close at the last step end before the window has more events than this. "
            "0: no limit. The default takes about ten seconds to save. The number is estimated "
            "while the window records, from blocks of 512 operators. Inside a step the window "
            "closes at twice this number.",
        ),
        Effect(
            torch="yes",
            python=NoEffect("VizTracer always keeps the newest 500,000 calls"),
            npu=NoEffect("torch_npu writes to disk while it records"),
            marks=NoEffect("marks are few"),
        ),
    ] = 1_000_000
    min_free_disk_mb: Annotated[
        float | None,
        Field(
            ge=0,
            le=1e12,
            description="Free disk space in MB (10^6 bytes) that the place of the capture must "
            "have. With less, a window does not open, and saving stops.",
        ),
        SAME,
    ] = 1024


class ThenConfig(Section):
    """The window that follows a slow step; its other settings are those of the file."""

    active: Annotated[
        int, Field(ge=1, le=10_000, description="Number of whole steps to record."), SAME
    ] = 3
    warmup: Annotated[
        int, Field(ge=0, le=10_000, description="Steps with the profiler on before them."), SAME
    ] = 0
    with_stack: Annotated[
        bool, Field(description="Record the Python call stack of operators."), SAME
    ] = False


class WatchConfig(Section):
    """The watch for slow steps. It is on while ``slower_than`` or ``longer_than_ms`` is set.

    A save that changes only this section requests no window. It applies on every rank that reads
    the file, whatever ``ranks`` says, and also if the file has it when the job starts.
    """

    slower_than: Annotated[
        float | None,
        Field(
            ge=1.1,
            le=1e6,
            description="A step is slow if it takes more than this many times the median of the "
            "last 400 steps, at least 10 ms more, and clearly more than these steps vary.",
            examples=[None, 1.5],
        ),
        SAME,
    ] = None
    longer_than_ms: Annotated[
        float | None,
        Field(
            gt=0,
            le=1e9,
            description="A step is slow if it takes more than this many ms. With slower_than, the "
            "shorter time counts.",
        ),
        SAME,
    ] = None
    then: Annotated[
        ThenConfig | None,
        Field(
            description="The window that a slow step requests, on all ranks, by the usual "
            "agreement. null: none. Ranks that follow rank 0 leave the request to it."
        ),
        SAME,
    ] = None
    max_per_hour: Annotated[
        int,
        Field(
            ge=1,
            le=1000,
            description="Most records of slow steps in an hour, on each rank. Further slow steps "
            "are only counted, except for five that take twice as long as all recorded ones. A "
            "process writes up to 500 records, until the next save that changes this section.",
        ),
        SAME,
    ] = 20
    budget_percent: Annotated[
        float,
        Field(
            gt=0,
            le=100,
            description="Share of one CPU, in percent, that samples and records may use. "
            "Near it, the watch samples less, and records wait.",
        ),
        SAME,
    ] = 0.4

    @property
    def is_on(self) -> bool:
        """Whether the watch is on."""
        return self.slower_than is not None or self.longer_than_ms is not None
