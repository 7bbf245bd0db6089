"""The training jobs that ``dynprof demo`` runs: ordinary scripts with the two lines in them."""
