"""The vendor's files about one trace: tables, database, stacks, and what was left out.

In comes a measured trace; out go files in the vendor's names and headers, each appearing whole.
Measures nothing itself. Others use ``tables``, ``own_tables``,
``bandwidth_tables``, ``host_tables``, ``merged_events``, ``levels``, ``device_schema``,
``database``, ``analysis_database``, ``stacks``, ``left_out``, ``asked_for`` and ``whole_files``.
"""
