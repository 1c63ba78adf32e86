"""Finds where to cut a program: by the minimum s-t cut of its weighed data flow (docs/CUT.md)."""
