"""The decision log: what came into the engine, what came out, and why; enough to run it again (`replaying`) and to ask
(`queries`).

    scheduler --Recorder--> segments in a store (a directory, or an object store) --Log--> replay, queries, what-if

Stands above engine and policy, and below the controllers. Files are read and written here; nothing else of the outside is.
"""
