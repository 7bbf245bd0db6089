"""The training jobs that ``dynprof demo`` runs: ordinary scripts with the two lines in them.

They import ``dynprof`` as a user's script does, and none of its submodules.
"""
