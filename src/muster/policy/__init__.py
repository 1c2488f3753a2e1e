"""The order in which waiting work is tried: queues, factors, formulas, predictions, backfill. Pure: no I/O, no clock."""
