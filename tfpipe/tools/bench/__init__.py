"""How fast the input pipeline is, against the machine's limit, and what bounds it."""
