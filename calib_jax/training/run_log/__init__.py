"""What a run says while it trains: ``metrics.jsonl``, event files, the progress line, speed and memory."""
