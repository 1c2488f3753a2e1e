"""What `muster doctor` looks at: probes read this machine, judges (pure) say what the facts mean."""
