"""Transfers between ranks, and between a device and its host, and their speed.

Input: columns and launches of one rank. Output: kinds, sizes, endpoints and bandwidths of
collectives, messages and copies. Other ranks are not known here. Other folders use
``collectives``, ``payloads``, ``point_to_point`` and ``copies``.
"""
