"""Files of rules that must be refused, or must do no harm."""
