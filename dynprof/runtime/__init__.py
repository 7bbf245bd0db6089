"""This process, its machine and its files, as far as profiling has to know them.

It finds the rank, starts dynprof's threads and interpreters, and keeps failures out of the training
loop. It writes files whole, so that only the job's user can change them. It decides nothing, does
not know what a file means, and keeps no state of a session.

Modules about the process: ``rank``, ``forked_child``, ``threads``, ``fresh_interpreter``,
``side_process``, ``modules``, ``memory``, ``graph_captures``, ``process_end``,
``unsupported_processes``, ``acting_user``, ``warnings_to_script``, ``standard_output``,
``shared_polling``, ``clock``, ``plural``, ``stacks`` and ``error_boundary``. Modules about files:
``layout``, ``output``, ``safe_open``, ``job_files``, ``folders``, ``destination``,
``record_values``, ``stale_folders``, ``file_system``, ``file_size_limit`` and ``who_may_change``.

``layout`` has every name and path rule. All writes go through ``output``. ``safe_open`` opens files
that others may have put there, and ``job_files`` lists the files of a running job.
"""
