"""What the machine gives: the time, unique ids, and text files that people edit."""
