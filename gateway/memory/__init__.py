"""What a model is shown: the soul, the recent exchanges, and the question, within an allowance."""
