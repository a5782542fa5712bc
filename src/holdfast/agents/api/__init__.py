"""The API of agents for programs."""
