"""The LangGraph saver. `holdfast.langgraph` is what programs import."""
