"""What the store has of an agent: its line, its record, its history, told without the agent being alive."""
