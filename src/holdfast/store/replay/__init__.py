"""Replays of what was recorded: of threads, agents and calls of hooks, each in a process of its own.

The host (`threads`, `hooks`, `export`) copies what a replay needs, and asks the process for it (`process`). There,
`worker` confines the code (`isolation`) and hands each order to the replayer of its subject: `agent_replayer`,
`hook_replayer`, or LangGraph's. `holdfast.replay` is what programs import.
"""
