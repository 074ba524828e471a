"""The dashboard: a read-only page, its JSON API and event stream, metrics, all from snapshots and the journal."""
