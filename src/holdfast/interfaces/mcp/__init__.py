"""A store for coding agents and assistants, over the Model Context Protocol."""
