"""OpenAI's files and batches: uploads on disk, their state in the database, and the runner that works through them."""
