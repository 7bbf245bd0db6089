"""What moved between ranks, and between a device and its host, and how fast.

In come columns and launches of one rank; out go kinds, sizes, ends and bandwidths of collectives,
messages and copies. Other ranks are not known here. Others use ``collectives``, ``payloads``,
``point_to_point`` and ``copies``.
"""
