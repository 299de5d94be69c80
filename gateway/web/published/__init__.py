"""What the surfaces promise, as types; documents are made of them."""
