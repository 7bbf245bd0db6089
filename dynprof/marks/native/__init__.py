"""Marks from C and C++: a small library with the functions of Ascend's mstx, and its reader.

In come marks from any native thread, without Python's lock; out they go to windows and subscribers.
Never keeps a thread waiting, and is not there where no compiler was as dynprof was installed.
Others use ``library``.
"""
