"""Comparison of ranks: their tables on disk, and which ranks keep others waiting.

Takes the Parquet tables of each rank, and returns step times, waits and stragglers of all ranks,
computed in SQL. It never reads a trace. Others use ``parquet`` and
``comparison``.
"""
