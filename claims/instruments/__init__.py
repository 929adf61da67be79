"""What measures. An instrument never asserts, knows no expected value and returns plain data."""
