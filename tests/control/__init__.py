"""What steers a turn."""
