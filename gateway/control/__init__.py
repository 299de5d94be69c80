"""Control of a turn: behaviour trees, rules, policies, notices and the conditions in them."""
