"""How containers run on this machine. `process` needs nothing but Linux, `runc` images and an OCI runtime."""
