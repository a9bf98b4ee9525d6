// FP32 arithmetic of arith/fp32.py, one operation at once instead of in stages.
//
// All functions are free of branches, so that loops over lanes become vector instructions.

#pragma once

#include <cstdint>

#define FPGAPIPE_INLINE inline __attribute__((always_inline))

namespace fpgapipe {

constexpr uint32_t infinity_bits = 0x7F800000;
constexpr uint32_t nan_bits = 0x7FC00000;

// Shift a word until its first bit is one, by at most 31 places; returns the shift.
FPGAPIPE_INLINE uint32_t normalize(uint32_t& word) {
    uint32_t shift = 0;
    uint32_t w = word;
#pragma GCC unroll 5
    for (int bit = 4; bit >= 0; --bit) {
        const uint32_t places = 1u << bit;
        const uint32_t moves = w >> (32 - places) ? 0 : places;
        w <<= moves;
        shift += moves;
    }
    word = w;
    return shift;
}

FPGAPIPE_INLINE uint32_t result(uint32_t negative, uint32_t nan, uint32_t value, uint32_t tiny) {
    uint32_t magnitude = value >= infinity_bits ? infinity_bits : value;
    magnitude = tiny ? 0 : magnitude;
    return nan ? nan_bits : magnitude | negative << 31;
}

FPGAPIPE_INLINE uint32_t significand(uint32_t value) {
    return (value >> 23 & 0xFF) ? (value & 0x7FFFFF) | 0x800000 : 0;
}

FPGAPIPE_INLINE uint32_t add(uint32_t a, uint32_t b) {
    const bool swap = (b & 0x7FFFFFFF) > (a & 0x7FFFFFFF);
    const uint32_t large = swap ? b : a, small = swap ? a : b;
    const uint32_t exponent = large >> 23 & 0xFF;
    const uint32_t apart = exponent - (small >> 23 & 0xFF);
    const uint32_t distance = apart > 31 ? 31 : apart;
    const uint32_t subtract = (large ^ small) >> 31;
    const uint32_t infinite = (small & 0x7FFFFFFF) == infinity_bits;
    const uint32_t nan = uint32_t((large & 0x7FFFFFFF) > infinity_bits) | (subtract & infinite);
    const uint32_t minuend = significand(large) << 3;
    const uint32_t moved = significand(small) << 2;
    const uint32_t sticky = (moved & ((1u << distance) - 1)) != 0;
    const uint32_t other = moved >> distance << 1 | sticky;
    const uint32_t word = (subtract ? minuend - other : minuend + other) << 4;
    uint32_t normal = word;
    const int32_t shift = int32_t(normalize(normal));
    const int32_t power = exponent == 255 ? 255 : int32_t(exponent) + 1 - shift;
    const uint32_t negative = large >> 31 & ~(subtract & uint32_t(word == 0));
    const uint32_t up = normal >> 7 & (normal >> 8 | uint32_t((normal & 0x7F) != 0)) & 1;
    const uint32_t rounded = (uint32_t(power & 0xFF) << 23 | (normal >> 8 & 0x7FFFFF)) + up;
    const uint32_t tiny = uint32_t(power <= 0) | (normal >> 31 ^ 1);
    return result(negative, nan, rounded, tiny);
}

FPGAPIPE_INLINE uint32_t multiply(uint32_t a, uint32_t b) {
    const uint32_t of_a = a >> 23 & 0xFF, of_b = b >> 23 & 0xFF;
    const uint32_t infinite = uint32_t(of_a == 255) | uint32_t(of_b == 255);
    const uint32_t zero = uint32_t(of_a == 0) | uint32_t(of_b == 0);
    const uint32_t nan = uint32_t((a & 0x7FFFFFFF) > infinity_bits) |
                         uint32_t((b & 0x7FFFFFFF) > infinity_bits) | (infinite & zero);
    const uint64_t product =
        uint64_t((a & 0x7FFFFF) | 0x800000) * uint64_t((b & 0x7FFFFF) | 0x800000);
    const uint32_t carry = uint32_t(product >> 47);
    const uint32_t high = uint32_t(product >> 22), low = uint32_t(product) & 0x3FFFFF;
    const uint32_t fraction = high >> (1 + carry) & 0x7FFFFF;
    const uint32_t half = high >> carry & 1;
    const uint32_t rest = uint32_t(low != 0) | (carry & high);
    int32_t power = int32_t(of_a + of_b) - 127;
    power = (infinite ? 255 : zero ? -1 : power) + int32_t(carry);
    const int32_t limited = power > 255 ? 255 : power;
    const uint32_t value = (uint32_t(limited) << 23 | fraction) + (half & (rest | fraction) & 1);
    const uint32_t tiny = uint32_t(power < 0) | uint32_t(value < 0x800000);
    return result((a ^ b) >> 31, nan, value, tiny);
}

// A sum of `acc_bits` bits that is sign-extended, as FP32; `exponent` is that of a sum whose magnitude
// takes all bits, biased.
FPGAPIPE_INLINE uint32_t from_sum(int32_t sum, int32_t exponent, uint32_t nan, int acc_bits) {
    const uint32_t negative = uint32_t(sum) >> 31;
    uint32_t word = uint32_t(negative ? -sum : sum) << (32 - acc_bits);
    const int32_t shift = int32_t(normalize(word));
    const int32_t power = exponent - shift;
    const uint32_t tiny = uint32_t(power <= 0) | (word >> 31 ^ 1);
    // The value of a large exponent is limited before it is put together, as it has 34 bits.
    const int32_t limited = power > 255 ? 255 : power;
    return result(negative, nan, uint32_t(limited) << 23 | (word >> 8 & 0x7FFFFF), tiny);
}

}  // namespace fpgapipe
