"""Ingestion: readers, manifest, safe decoding, views, and the demo data."""
