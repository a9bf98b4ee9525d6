"""Units of images: fixed maps of axes, and volumes."""
