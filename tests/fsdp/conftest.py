"""Nothing here needs a GPU, nor a network but loopback."""
