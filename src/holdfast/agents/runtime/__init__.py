"""Who keeps a live agent: what it carries, how that is saved, by the program or by itself, in one step or in two."""
