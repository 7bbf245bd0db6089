"""Tests of the callbacks without their frameworks."""
