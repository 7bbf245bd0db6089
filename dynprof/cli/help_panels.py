"""In what order and under which titles ``arm --help`` shows the settings, and in how few words.

What is not named here has the words of the model, which the docs show in full.
"""

from __future__ import annotations

PANELS: dict[str | None, tuple[str, ...]] = {
    None: (
        "active", "warmup", "start_step", "ranks",
        "record_shapes", "profile_memory", "with_stack",
    ),
    "Limits and agreement": (
        "max_seconds", "max_memory_mb", "max_events", "min_free_disk_mb", "patience_s", "unable",
    ),
    "More detail": (
        "activities", "with_flops", "with_modules", "record_op_args", "memory_snapshot",
        "gc_detect_threshold", "host_sys", "profiler_level", "backend",
    ),
    "Marks of the script": ("mstx", "mstx_domain_include", "mstx_domain_exclude", "msprof_tx"),
    "Files and tables": (
        "prof_dir", "scratch_dir", "spread_s", "retry_s", "metadata", "analyse", "export_type",
        "async_mode",
    ),
    "Ascend NPU": (
        "aic_metrics", "l2_cache", "op_attr", "data_simplification", "sys_io",
        "sys_interconnection",
    ),
}  # fmt: skip
"""Each panel with its settings; without a title the one that comes first, beside --wait."""

BRIEFS = {
    "warmup": "Steps with the profiler on before them.",
    "start_step": "Where the window opens; 0: the next step.",
    "ranks": 'Which ranks: all, 0-3,8, "every 64th", ...',
    "patience_s": "How long to wait for a rank that is busy.",
    "unable": "If one rank cannot: refuse or downgrade.",
    "record_shapes": "Shapes and types of operator inputs.",
    "profile_memory": "Allocations and releases of tensor memory.",
    "with_stack": "Python call stacks; costs more.",
    "max_seconds": "Close early after so many seconds.",
    "max_memory_mb": "Close early if it grew by so many MB.",
    "max_events": "Close early before it has more; 0: never.",
    "min_free_disk_mb": "Neither open nor save with less free.",
    "activities": "What to watch: CPU, CUDA, XPU, NPU.",
    "with_flops": "Estimated operations of matrix products.",
    "record_op_args": "Operators' arguments, in their own file.",
    "memory_snapshot": "The history of the device's memory.",
    "gc_detect_threshold": "Garbage collections longer than X ms.",
    "host_sys": "Sample the host: cpu, mem, disk, network.",
    "profiler_level": "Level_none, Level0, Level1 or Level2.",
    "backend": "torch, npu, python, or auto.",
    "mstx": "Marks and ranges that the script sets.",
    "prof_dir": "Where captures go: a directory or a URL.",
    "scratch_dir": "Put them together here first, then move.",
    "spread_s": "Ranks begin to write over so many seconds.",
    "retry_s": "Try to move a capture for so long.",
    "metadata": "To find again in the trace; may come again.",
    "export_type": "Form of the tables: text, db or both.",
    "aic_metrics": "Metrics of AI cores, from Level1 on.",
    "op_attr": "Attributes of aclnn operators, into db.",
    "data_simplification": "Delete what the tables are made from.",
}
