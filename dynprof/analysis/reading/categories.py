"""The categories of events, with every name that a version of Kineto has given them.

All names are in lower case: torch 1.8 to 1.10 wrote ``Operator``, ``Runtime`` and ``Kernel``. Later
names are those of Kineto's ``ActivityType.cpp``.
"""

from __future__ import annotations

Names = frozenset[str]

OPERATORS: Names = frozenset({"cpu_op", "operator"})
LABELS: Names = frozenset({"user_annotation"})
"""Ranges that a script or torch sets on the host."""
MARKS: Names = frozenset({"mstx"})
"""Moments of ``dynprof.mstx``, and its ranges that may cross each other and threads."""
DEVICE_MARK = "dynprof_mark"
"""What host and device do for a mark on a stream, which is no work. The reader sets this name."""
RANGES: Names = frozenset({"nvtx", "roctx"})
"""Ranges that a script set for another profiler, as named by converters of its traces."""
FRAMES: Names = frozenset({"python_function"})
"""Kineto's frames of Python."""
CALLS: Names = frozenset({"fee"})
"""VizTracer's calls of Python."""
STEP_LABELS: Names = frozenset({"step"}) | LABELS | OPERATORS
"""The categories that may have labels of steps; ``step`` is dynprof's own."""
RECORDINGS: Names = frozenset({"trace"})
"""Kineto's own span around everything that it recorded."""
OVERHEADS: Names = frozenset({"overhead"})
"""Overhead of CUPTI and the driver; they do not report its thread."""
COLLECTIONS: Names = frozenset({"gc"})
"""Python's garbage collections, as dynprof records them."""

LAUNCHES: Names = frozenset(
    {
        "runtime", "cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver", "mtia_runtime",
        "glow_runtime", "privateuse1_runtime", "privateuse1_driver",
    }
)  # fmt: skip
"""The host's calls of a device's runtime and driver."""
KERNELS: Names = frozenset({"kernel", "mtia_ccp_events", "hpu_op", "privateuse1_kernel"})
COPIES: Names = frozenset({"gpu_memcpy", "memcpy", "privateuse1_memcpy"})
MEMSETS: Names = frozenset({"gpu_memset", "memset", "privateuse1_memset"})
ON_DEVICE: Names = KERNELS | COPIES | MEMSETS
"""Everything that takes time of a device."""
SYNCHRONISATIONS: Names = frozenset({"cuda_sync"})
"""What a stream or the host waits for, reported by CUPTI."""
