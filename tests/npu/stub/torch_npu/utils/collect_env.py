"""Versions that the wheel's own module would read from an installed wheel."""

import torch_npu


def get_torch_npu_version():
    """Return the version of the wheel."""
    return torch_npu.__version__


def get_cann_version():
    """Return an empty version: there is no driver."""
    return "not known"
