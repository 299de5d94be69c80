"""Tools of other programs over the Model Context Protocol, and ours for them."""
