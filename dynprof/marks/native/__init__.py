"""Marks from C and C++: a small library with the functions of Ascend's mstx, and its reader.

Input: marks from any native thread, without the GIL. Output: the same, for windows and
subscribers. The library never blocks a thread. It is missing where there was no compiler when
dynprof was installed. Others use ``library``.
"""
