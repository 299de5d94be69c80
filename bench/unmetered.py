"""The real command without its meter, for comparison: it reserves and records nothing."""

from gateway.budgets import Meter
from gateway.cli.main import main

if __name__ == "__main__":
    Meter.around = lambda _, model: model  # type: ignore[assignment,method-assign]  # replaces the meter
    main()
