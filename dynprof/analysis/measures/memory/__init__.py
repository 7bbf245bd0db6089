"""Tensor memory: each allocation with its maker and its release, and how much there was at a time.

In come columns and operators; out go allocations and a timeline. What devices copy is not counted
here. Others use ``memory_timeline``.
"""
