"""This process, its machine and its files, as far as profiling has to know them.

It finds the rank, starts dynprof's threads and interpreters, and keeps failures out of the training
loop. It writes files whole, so that only the job's user can change them. It decides nothing, does
not know what a file means, and keeps no state of a session.

Modules about the process: ``rank``, ``process_hooks``, ``threads``, ``fresh_interpreter``,
``side_process``, ``modules``, ``memory``, ``graph_captures``, ``acting_user``,
``standard_streams``, ``shared_polling``, ``clock``, ``plural``, ``stacks`` and ``error_boundary``.
Modules about files: ``layout``, ``safe_write``, ``safe_open``, ``job_files``,
``destination``, ``stale_folders``, ``file_system`` and ``permissions``.

``layout`` has every name and path rule. All writes go through ``safe_write``. ``safe_open`` opens
files and folders that others may have put there, and ``job_files`` lists the files of a running
job.
"""
