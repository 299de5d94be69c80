"""Budgets: no provider call without a reservation; what it came to is recorded."""
