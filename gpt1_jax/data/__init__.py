"""Data: text to token shards to windows; rows to labelled examples to padded batches."""
