"""Whether a kernel computes on the units for matrices, as far as its name tells."""

from __future__ import annotations

import re

_WITH = re.compile(
    r"tensorop|wgmma|[hibd]mma|nvjet|_tensor\d+x\d+"
    r"|[a-z]\d?(?:884|1688|16816|16832|8816)(?!\d)"  # how large a piece one instruction takes
    r"|flash_(?:fwd|bwd)|cudnn_generated_fort_native_sdpa"
    r"|_MI\d+x\d+",  # of Tensile, on AMD
    re.IGNORECASE,
)
_WITHOUT = re.compile(
    r"simt|ffma|scudnn|winograd|wgrad_alg0_engine|dgrad_engine|(?:^|_|:)[sd]gemm|gemv|gemmk1",
    re.IGNORECASE,
)
_BESIDE = re.compile(
    r"elementwise|reduce_kernel|splitkreduce|multi_tensor_apply|softmax|layer_?norm|batch_?norm"
    r"|group_?norm|bn_(?:fw|bw)|memcpy|memset|copy|nchwtonhwc|nhwctonchw|epilogue::impl"
    r"|scalepackedtensor",
    re.IGNORECASE,
)
_TENSILE = re.compile(r"Cijk_\w+")


def on_tensor_cores(kernel: str) -> bool | None:
    """Return whether a kernel computes on tensor cores; None where its name does not tell.

    Args:
        kernel: Its name.
    """
    if _WITH.search(kernel):
        return True
    if _TENSILE.match(kernel) or _WITHOUT.search(kernel):
        return False
    return None


def is_beside(kernel: str) -> bool:
    """Return whether a kernel is known to be no product, but to copy, add up, or fill in.

    Args:
        kernel: Its name.
    """
    return bool(_BESIDE.search(kernel)) and not _WITH.search(kernel)
