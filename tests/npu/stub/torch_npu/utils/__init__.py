"""The wheel's own modules, without the patches of torch in its ``__init__``."""

import torch_npu

__path__.append(str(torch_npu.WHEEL / "torch_npu/utils"))


def should_print_warning() -> bool:
    """Return that the vendor's warnings are printed."""
    return True


_should_print_warning = should_print_warning
