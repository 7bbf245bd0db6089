"""The watch for slow steps: what the very step did that took longer than usual.

Input: the ends of steps, and samples of all stacks by a thread of its own. Output: a record of each
slow step, with a page and a verdict, next to the captures. It never stops, opens or delays a step.
Others use ``slow_steps``: it follows the config, judges steps and writes the records.
"""
