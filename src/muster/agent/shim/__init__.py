"""The parent of every container: forked from a small process that the agent keeps, it outlives the agent.

`launching` says what is handed over; `shim` and `zygote` run in the small processes and import nothing but the standard
library (their start and their memory count once per container); `client` is the agent's side.
"""
