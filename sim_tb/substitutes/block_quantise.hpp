// Quantisation of one block of 32 elements: arith/mx.py's BlockQuantiser without its registers.

#pragma once

#include <cstdint>

#include "block_fp32.hpp"
#include "block_simd.hpp"

namespace fpgapipe {

constexpr unsigned block_size = 32;
constexpr unsigned quantise_ticks = 5;  // latency of the gateware

struct QuantisedBlock {
    alignas(64) uint8_t elements[block_size];
    uint32_t code;
};

FPGAPIPE_INLINE void quantise(const uint16_t* __restrict values, uint32_t more,
                              QuantisedBlock& block) {
    alignas(64) uint32_t exponents[block_size];
    uint32_t code = 0;
    for (unsigned i = 0; i < block_size; ++i) {
        exponents[i] = values[i] >> 7 & 0xFF;
        code = exponents[i] > code ? exponents[i] : code;
    }
    const bool nan = code == 0xFF;
    for (unsigned i = 0; i < block_size; ++i) {
        const uint32_t exponent = exponents[i];
        const uint32_t normal = exponent != 0;
        const uint32_t negative = values[i] >> 15;
        const uint32_t distance = code - exponent;
        const uint32_t far = uint32_t(distance >= 8) | (normal ^ 1) | nan;
        const uint32_t near = distance & 7;
        const uint32_t significand = (values[i] & 0x7F) | normal << 7;
        const uint32_t kept = significand >> near;
        const uint32_t lost = (more >> i & 1) | ((significand & ((1u << near) - 1)) != 0);
        const uint32_t whole = far ? 0 : kept >> 1;
        const uint32_t full = kept >> 1 == 0x7F;
        const uint32_t up = kept & (lost | kept >> 1) & (full ^ 1) & (far ^ 1) & 1;
        block.elements[i] = uint8_t((whole ^ (negative ? 0xFF : 0)) + (up ^ negative));
    }
    block.code = code;
}

using QuantiseKernel = void (*)(const uint16_t* values, uint32_t more, QuantisedBlock& block);
inline void quantise_plain(const uint16_t* values, uint32_t more, QuantisedBlock& block) {
    quantise(values, more, block);
}
#if defined(__x86_64__)
FPGAPIPE_AVX2 inline void quantise_avx2(const uint16_t* values, uint32_t more,
                                        QuantisedBlock& block) {
    quantise(values, more, block);
}
FPGAPIPE_AVX512 inline void quantise_avx512(const uint16_t* values, uint32_t more,
                                          QuantisedBlock& block) {
    quantise(values, more, block);
}
#endif

inline QuantiseKernel quantise_kernel() {
    switch (best_simd()) {
#if defined(__x86_64__)
        case Simd::avx512: return quantise_avx512;
        case Simd::avx2: return quantise_avx2;
#endif
        default: return quantise_plain;
    }
}

}  // namespace fpgapipe
