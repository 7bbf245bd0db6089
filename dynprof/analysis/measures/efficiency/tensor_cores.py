"""Whether a kernel computes on the units for matrices, as far as its name tells."""

from __future__ import annotations

import re

_WITH = (
    "tensorop", "wgmma", "hmma", "imma", "bmma", "dmma", "nvjet", "flash_fwd", "flash_bwd",
    "cudnn_generated_fort_native_sdpa",
)  # fmt: skip
_WITH_SIZE = re.compile(
    r"_tensor\d+x\d+"
    r"|(?<=[a-z])(?:884|1688|16816|16832|8816)(?!\d)"  # how much one instruction takes
    r"|_mi\d+x\d+"  # of Tensile, on AMD
)
_WITHOUT = (
    "simt", "ffma", "scudnn", "winograd", "wgrad_alg0_engine", "dgrad_engine", "_sgemm", "_dgemm",
    ":sgemm", ":dgemm", "gemv", "gemmk1",
)  # fmt: skip
_BESIDE = (
    "elementwise", "reduce_kernel", "splitkreduce", "multi_tensor_apply", "softmaxforward",
    "softmaxbackward", "softmax_warp", "layer_norm", "layernorm", "batch_norm", "batchnorm",
    "group_norm", "groupnorm", "bn_fw", "bn_bw", "memcpy", "memset", "catarraybatchedcopy",
    "nchwtonhwc", "nhwctonchw", "epilogue::impl", "scalepackedtensor",
)  # fmt: skip
_FUSED = "triton_"
"""What a compiler fused bears the names of all that is in it."""


def on_tensor_cores(kernel: str) -> bool | None:
    """Return whether a kernel computes on tensor cores; None where its name does not tell.

    Args:
        kernel: Its name.
    """
    name = kernel.lower()
    if name.startswith(_FUSED):
        return None
    if _uses(name):
        return True
    if name.startswith(("cijk_", "sgemm", "dgemm")) or _any(_WITHOUT, name) or is_beside(kernel):
        return False
    return None


def is_beside(kernel: str) -> bool:
    """Return whether a kernel is known to be no product, but to copy, add up, or fill in.

    Args:
        kernel: Its name.
    """
    name = kernel.lower()
    return not name.startswith(_FUSED) and _any(_BESIDE, name) and not _uses(name)


def _uses(name: str) -> bool:
    return _any(_WITH, name) or bool(_WITH_SIZE.search(name))


def _any(parts: tuple[str, ...], name: str) -> bool:
    return any(part in name for part in parts)
