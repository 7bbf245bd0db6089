"""From where a capture was put together to where ``prof_dir`` says: another disk, or a URL.

In come the files of one capture; they leave in a process beside the training, again and again until
they are there, or stay where they are and the log says so. Never imports a cloud's package into
the job, never reads credentials. Others use ``order``, ``deliveries`` and ``left_behind``.
"""
