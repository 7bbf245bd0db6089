"""torch's own profiler, on the CPU, on CUDA and on XPU.

In comes a plan; out goes a recording that any thread may end. Torch is imported inside functions
alone, once the script has imported it. Never takes libkineto's session from the script. Others use
``backend``, ``closing``, ``kineto_messages``, ``memory_history`` and ``operator_stream``.
"""
