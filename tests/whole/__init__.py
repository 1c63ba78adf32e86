"""Tests of the whole program, or of several packages together."""
