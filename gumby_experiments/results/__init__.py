"""What is made of runs: tables with their origin, statistics, figures, pages and comparisons."""
