"""The tables that a user's SQL reads: their columns and meaning, and how a trace fills them.

Takes a measured trace, and writes one Parquet file for each table. It measures nothing itself: each
column comes from ``measures``. Others use ``schema`` and ``trace_tables``.
"""
