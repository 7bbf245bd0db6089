"""The wheel's own modules, without what its ``__init__`` patches into torch."""

import torch_npu

__path__.append(str(torch_npu.WHEEL / "torch_npu/utils"))


def should_print_warning() -> bool:
    """Print what the vendor's code warns of."""
    return True


_should_print_warning = should_print_warning
