"""Ranks side by side: what each is compared by, on disk, and who keeps whom waiting.

In come columns that each rank leaves as Parquet; out go step times, waits and stragglers of all
ranks, computed in SQL. Never reads a trace. Others use ``parquet``, ``comparison``,
``longer_work``, ``database``, ``bandwidth`` and ``clock_words``.
"""
