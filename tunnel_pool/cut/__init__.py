"""Where to cut a program: its data flow weighed, and the minimum s-t cut of it (docs/CUT.md)."""
