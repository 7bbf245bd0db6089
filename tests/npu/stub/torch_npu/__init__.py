"""A stub of torch_npu for a machine without an NPU.

The native module and the device are stubs that note their calls. The rest is the Python layer of a
real wheel, found through ``TORCH_NPU_WHEEL``.
"""

import os
from pathlib import Path

import torch

WHEEL = Path(os.environ["TORCH_NPU_WHEEL"])
__version__ = WHEEL.name
__path__.append(str(WHEEL / "torch_npu"))

from torch_npu import npu  # noqa: E402 - its place is known only now

torch.npu = npu
