"""Findings: avoidable costs of a step, and what to try about them.

Takes a measured trace and returns findings, the worst first, each with the share of a step that it
takes. It measures nothing itself and writes nothing. Others use ``rules`` and ``finding``.
"""
