"""HTTP as nobody decent would send it."""
