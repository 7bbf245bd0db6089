"""The ``experimental_config`` section."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dynprof.config.effects import ASCEND_ONLY, COUNTERS, NO_TENSORS, Effect, NoEffect, Section

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
