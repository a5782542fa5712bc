"""What people and frameworks use a store through: the command line, the LangGraph saver, scripts."""
