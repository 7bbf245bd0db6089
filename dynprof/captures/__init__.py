"""From a stopped recording to the files of a capture, off the training thread.

In comes a recording with its manifest; out go a compressed trace, the manifest beside it, and the
analysis if one was asked for. Never stops a recording and never calls the training's code. Others
use ``exporter``, ``manifest``, ``window_record``, ``trace_packing``, ``broken_names`` and
``analysis_start``.
"""
