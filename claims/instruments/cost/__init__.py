"""What attention costs: operations, bytes and time."""
