"""What the categories of events mean, by every name that a version of Kineto has given them.

All names are in lower case: torch 1.8 to 1.10 wrote ``Operator``, ``Runtime`` and ``Kernel``. The
later ones stand in Kineto's ``ActivityType.cpp``.
"""

from __future__ import annotations

Names = frozenset[str]

OPERATORS: Names = frozenset({"cpu_op", "operator"})
LABELS: Names = frozenset({"user_annotation"})
"""Ranges that a script or torch sets on the host."""
MARKS: Names = frozenset({"mstx"})
"""Moments of ``dynprof.mstx``, and those of its ranges that may cross each other and threads."""
DEVICE_MARK = "dynprof_mark"
"""What host and device do for a mark on a stream: nobody's work; it is named so on reading."""
RANGES: Names = frozenset({"nvtx", "roctx"})
"""Ranges that a script set for another profiler, as converters of its traces name them."""
FRAMES: Names = frozenset({"python_function"})
"""Kineto's frames of Python."""
CALLS: Names = frozenset({"fee"})
"""VizTracer's calls of Python."""
STEP_LABELS: Names = frozenset({"step"}) | LABELS | OPERATORS
"""Where the labels of steps are found; ``step`` are dynprof's own."""
RECORDINGS: Names = frozenset({"trace"})
"""Kineto's own span around all that it recorded, from before the first to after the last."""
OVERHEADS: Names = frozenset({"overhead"})
"""What CUPTI and the driver did for themselves; on which thread they do not say."""
COLLECTIONS: Names = frozenset({"gc"})
"""Python's garbage collections, as dynprof records them."""

LAUNCHES: Names = frozenset(
    {
        "runtime", "cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver", "mtia_runtime",
        "glow_runtime", "privateuse1_runtime", "privateuse1_driver",
    }
)  # fmt: skip
"""What the host asks of a device: calls of its runtime and of its driver."""
KERNELS: Names = frozenset({"kernel", "mtia_ccp_events", "hpu_op", "privateuse1_kernel"})
COPIES: Names = frozenset({"gpu_memcpy", "memcpy", "privateuse1_memcpy"})
MEMSETS: Names = frozenset({"gpu_memset", "memset", "privateuse1_memset"})
ON_DEVICE: Names = KERNELS | COPIES | MEMSETS
"""What takes the time of a device."""
SYNCHRONISATIONS: Names = frozenset({"cuda_sync"})
"""What one stream or the host waits for, as CUPTI tells."""
