"""This process and the machine under it, as far as profiling has to know them.

Tells the rank, starts threads and interpreters of dynprof's own, and finds the line of the script
that a warning is about. Decides nothing, and keeps no state of a session. Others use ``rank``,
``process_group``, ``threads``, ``queues``, ``thread_switching``,
``fresh_interpreter``, ``child_environment``, ``side_process``, ``package_files``, ``greenlets``,
``file_size_limit``, ``interruptions``,
``graph_captures``, ``shadowed_modules``, ``vendor_imports``, ``whole_modules``,
``warnings_to_script``, ``shared_looks``, ``spool``,
``standard_error``, ``standard_descriptors``, ``garbage_collector``, ``connections``,
``profile_functions``, ``flags``, ``one_at_a_time``, ``descriptors``, ``stack_room``, ``unwatched``,
``memory``, ``thread_arrivals``, ``thread_place``, ``process_end`` and ``acting_user``.
"""
