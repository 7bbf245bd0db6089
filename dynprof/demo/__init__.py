"""The training jobs that ``dynprof demo`` runs: ordinary scripts with the two lines in them.

They import ``dynprof`` as any user does, and nothing of its rooms.
"""
