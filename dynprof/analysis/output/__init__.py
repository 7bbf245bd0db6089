"""The vendor's files about one trace: tables, database, stacks, and the reasons for missing files.

Takes a measured trace and writes files with the vendor's names and headers, each atomically. It
measures nothing itself. Others use ``tables``, ``own_tables``,
``bandwidth_tables``, ``host_tables``, ``merged_events``, ``levels``, ``device_schema``,
``database``, ``analysis_database``, ``stacks``, ``left_out``, ``asked_for`` and ``whole_files``.
"""
