"""The benchmarks' own parts."""
