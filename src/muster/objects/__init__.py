"""The kinds and what is known about them: views, schemas, quantities, selectors, patches. Pure: no I/O, no clock, no chance."""
