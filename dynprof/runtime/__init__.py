"""This process, its machine and its files, as far as profiling has to know them.

Tells the rank, starts threads and interpreters of dynprof's own, writes whole files that only the
job's user can change, and keeps failures from the training loop. Decides nothing, knows nothing of
what a file means, and keeps no state of a session. Others use, of the process, ``rank``,
``forked_child``, ``threads``, ``fresh_interpreter``, ``side_process``, ``modules``, ``memory``,
``graph_captures``, ``process_end``, ``unsupported_processes``, ``acting_user``,
``warnings_to_script``, ``shared_polling``, ``clock``, ``plural`` and ``error_boundary``; of its
files ``layout``, ``folders``, ``output``, ``destination``, ``safe_open``, ``record_values``,
``job_files``, ``stale_folders``, ``file_system``, ``file_size_limit`` and ``who_may_change``.

``layout`` has every name and path rule, ``output`` all that is written, ``safe_open`` opens what
others may have put there, ``job_files`` what is in a folder in which a job is at work.
"""
