"""What a trained network says of samples."""
