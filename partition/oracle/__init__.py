"""The oracle: time, memory and limits of parallel strategies over numbers of devices."""
