"""Who acts, what they may, and what they did: the one place every path to scoped state passes."""
