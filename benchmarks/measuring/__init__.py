"""What all questions share: figures, the raw limit of SQLite, flows to run, workers in processes of their own."""
