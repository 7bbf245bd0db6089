"""From a stopped recording to the files of a capture, where ``prof_dir`` says.

In comes a recording with its manifest; out go a compressed trace, the manifest beside it, and the
analysis if one was asked for. What goes to another disk or to a URL is sent by a process beside the
training, again and again until it has arrived. Never stops a recording, calls the training's code,
imports a cloud's package into the job, or reads credentials. Others use ``exporter``,
``manifest``, ``window_record``, ``broken_names``, ``analysis_start``, ``delivery_order``,
``deliveries`` and ``left_behind``.
"""
