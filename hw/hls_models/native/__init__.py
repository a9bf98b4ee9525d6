"""The bit-exact model's instructions in C++, for programs that run many times."""
