"""The vendor's files about one trace: tables, database, stacks, and the reasons for missing files.

Takes a measured trace and writes files with the vendor's names and headers, each atomically. It
measures nothing itself. Others use ``tables``, ``communication``, ``database``,
``analysis_database``, ``stacks``, ``left_out`` and ``json_files``.
"""
