"""One module per result: tables and figures of the papers, tuning, benchmarks."""
