"""Reads captures: manifests and traces are its whole input, so it runs anywhere."""
