"""The blocks of ``hls_models`` as Amaranth gateware, under the same names."""
