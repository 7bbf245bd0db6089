"""The part of ``torch_npu.npu`` that scripts need here: ``mstx``."""

import dynprof.mstx as _mstx


class mstx:  # noqa: N801 - the vendor's name
    """The functions of :mod:`dynprof.mstx`, as methods of the vendor's class."""

    mark = staticmethod(_mstx.mark)
    range_start = staticmethod(_mstx.range_start)
    range_end = staticmethod(_mstx.range_end)
    range_push = staticmethod(_mstx.range_push)
    range_pop = staticmethod(_mstx.range_pop)
    mstx_range = staticmethod(_mstx.mstx_range)
    annotate = _mstx.annotate


__all__ = ["mstx"]
