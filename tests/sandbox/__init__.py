"""The sandbox, with real worker processes and guests written for the test."""
