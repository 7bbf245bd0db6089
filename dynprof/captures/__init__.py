"""Turn a stopped recording into the files of a capture, at the place that ``prof_dir`` names.

Input: a recording with its manifest. Output: a compressed trace, its manifest, and the analysis if
one was requested. A separate process sends captures that go to another disk or to a URL, and
retries until they arrive. It never stops a recording, calls the training's code, imports a
cloud's package into the job, or reads credentials. Other packages use ``exporter``, ``manifest``,
``baselines``, ``window_record``, ``broken_names``, ``analysis_start`` and ``deliveries``.
"""
