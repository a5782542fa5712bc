"""Interfaces of a store for people and frameworks: the command line, the LangGraph saver, scripts."""
