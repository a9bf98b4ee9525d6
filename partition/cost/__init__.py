"""What layers and cores cost a device."""
