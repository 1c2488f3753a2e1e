"""`contract.Store`, its two implementations, and what controllers stand on: informers, work queues, leases, events."""
