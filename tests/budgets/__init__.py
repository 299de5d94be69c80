"""The decisions of budgets, and the meter."""
