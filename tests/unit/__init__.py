"""Tests of one room at a time, with dynprof's fakes. They never sleep."""
