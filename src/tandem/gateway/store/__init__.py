"""What must survive: keys, ledger, files, batches, in SQLite or PostgreSQL."""
