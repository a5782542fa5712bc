"""Recording runs of agents: the calls of their tasks, and how a replay compares and answers them."""
