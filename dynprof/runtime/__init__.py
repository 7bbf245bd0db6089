"""This process, its machine and its files, as far as profiling has to know them.

Tells the rank, starts threads and interpreters of dynprof's own, writes whole files that only the
job's user can change, and keeps failures from the training loop. Decides nothing, knows nothing of
what a file means, and keeps no state of a session. Others use, of the process, ``rank``,
``forked_child``, ``threads``, ``fresh_interpreter``, ``side_process``, ``modules``, ``memory``,
``graph_captures``, ``process_end``, ``unwatched``, ``acting_user``, ``warnings_to_script``,
``shared_looks``, ``clock``, ``plural`` and ``error_boundary``; of its files ``layout``,
``folders``, ``output``, ``destination``, ``regular``, ``record_values``, ``below``, ``leftovers``,
``file_system``, ``file_size_limit`` and ``who_may_change``.

``layout`` has every name and path rule, ``output`` all that is written, ``regular`` opens what
others may have put there, ``below`` what is in a folder in which a job is at work.
"""
