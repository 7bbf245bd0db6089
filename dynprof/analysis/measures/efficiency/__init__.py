"""How efficient operators and kernels are, compared with the peaks of their device.

Input: operators with their inputs, and kernels with their launches. Output: FLOPs, bytes, rates,
rooflines, launch configurations of kernels, and kernels that could be fused. It guesses no input
that the trace does not contain. Other folders use ``flops``, ``kernel_shapes``,
``operator_kernels``, ``roofline`` and ``sequences``.
"""
