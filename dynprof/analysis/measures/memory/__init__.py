"""Tensor memory: each allocation with its operator and its release, and the amount over time.

Input: columns and operators. Output: allocations and a timeline. Copies by devices are not
counted here. Other folders use ``memory_timeline``.
"""
