"""Live agents: their data, how it is saved, by the program or automatically, and changes in one step or two."""
