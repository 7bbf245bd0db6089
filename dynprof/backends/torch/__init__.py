"""torch's own profiler, on the CPU, on CUDA and on XPU.

Input: a plan. Output: a recording that any thread may end. Torch is imported only inside
functions, once the script has imported it. This package never takes libkineto's session from the
script. Others use ``backend``, ``closing``, ``collectors``, ``kineto``, ``operator_stream`` and
``out_of_memory``.
"""
