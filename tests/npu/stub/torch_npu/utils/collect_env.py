"""Versions, which the wheel's own module looks up where a wheel is installed."""

import torch_npu


def get_torch_npu_version():
    """Return the version of the wheel."""
    return torch_npu.__version__


def get_cann_version():
    """Return that there is no driver."""
    return "not known"
