"""What an author says of agents: their classes, their fields, their machine, how they are kept. It knows no store."""
