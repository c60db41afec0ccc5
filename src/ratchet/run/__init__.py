"""What a run is, without torch: folder, lock, journal and records, how it ends, and what is wrong with it."""
