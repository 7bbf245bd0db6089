"""Benchmarks; ``make bench`` runs them all and prints a table each."""
