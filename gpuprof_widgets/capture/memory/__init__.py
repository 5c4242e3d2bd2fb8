"""What recorded memory was for: whose storage lies at which address."""
