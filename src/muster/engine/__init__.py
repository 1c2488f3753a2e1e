"""The scheduler's pure heart. Start reading at `cycle.py`; `machine.py` is the door.

Events go in, decisions come out (`events`, `decisions`). In between: `state` (nodes in `columns`, pods in `pods`), `shapes`
(pods that nothing tells apart), `units` (what is decided at once), `profile` and `plugin` (who has a say), `evaluate` (what
they said, kept per shape), `queue` (who waits, and for what). No clock, no randomness, no I/O: same events, same decisions.
"""
