"""The scratchpad, and the engines that move data, as gateware."""
