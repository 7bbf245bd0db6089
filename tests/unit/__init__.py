"""Tests of one room at a time, with the shipped fakes; they never sleep."""
