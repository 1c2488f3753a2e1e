"""One module per command. Importing one must stay cheap: no HTTP client, no server, no database, no cryptography at the top."""
