"""How good what operators and kernels did is, held against what their device can do.

In come operators with their inputs and kernels with their launches; out go FLOPs, bytes, rates,
rooflines, shapes of kernels, and kernels that could be one. Guesses no input that the trace does
not tell. Others use ``flops``, ``grids``, ``kernel_shapes``, ``roofline`` and
``sequences``.
"""
