"""What the surfaces promise, as types: answers are made as them, and the documents are made of them."""
