"""This process and the machine under it, as far as profiling has to know them.

Tells the rank, starts threads and interpreters of dynprof's own, and finds the line of the script
that a warning is about. Decides nothing, and keeps no state of a session. Others use ``rank``,
``process_group``, ``forked_child``, ``threads``, ``thread_switching``, ``fresh_interpreter``,
``child_environment``, ``side_process``, ``package_files``, ``greenlets``, ``file_size_limit``,
``interruptions``, ``graph_captures``, ``shadowed_modules``, ``vendor_imports``, ``whole_modules``,
``warnings_to_script``, ``shared_looks``, ``standard_error``, ``unwatched``, ``memory``,
``thread_place``, ``process_end`` and ``acting_user``.
"""
