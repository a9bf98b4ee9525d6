"""What runs inside or around a simulator."""
