"""The simulator: a whole system in virtual time, with faults by seed. Start reading at `world.py`.

`clock` moves time, `entropy` is all chance, `faults` stand between a component and the store, `component` is a process that
dies and comes back, `machine` and `agent` are nodes, and `world` puts them together around the embedded store.
"""
