"""The tools of agents: the gate that checks and limits calls, and the results."""
