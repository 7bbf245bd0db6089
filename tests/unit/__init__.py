"""Tests of one package at a time, with dynprof's fakes. They never sleep."""
