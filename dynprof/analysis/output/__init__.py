"""The vendor's files about one trace: tables, database, stacks, and what was left out.

In comes a measured trace; out go files in the vendor's names and headers, each appearing whole.
Measures nothing itself. Others use ``tables``, ``database``, ``stacks``, ``json_files``,
``left_out``, ``bandwidth_tables``, ``merged_events`` and ``whole_files``.
"""
